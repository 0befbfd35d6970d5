"""Chained HotStuff as a pure machine; imports VALUES only."""
