"""Blobs: their bytes, their availability, and their sources; imports VALUES only."""
