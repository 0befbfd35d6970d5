"""What is written to disk: the database, blobs, and the order of their writes."""
