"""Blobs: their bytes, their availability, and whom to ask for them; imports VALUES only."""
