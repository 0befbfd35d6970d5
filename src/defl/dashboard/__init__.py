"""The web page that shows a node, or all nodes of a federation on this machine. It only reads."""
