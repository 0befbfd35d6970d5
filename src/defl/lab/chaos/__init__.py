"""A laboratory of real networks: real nodes in network namespaces, joined by a link that delays,
loses and cuts. `make chaos` runs it and writes docs/RELIABILITY.md.

Only addresses inside these namespaces are ever used. Everything here needs root.
"""
