"""Relays: they connect members that can only dial, and see nothing but encrypted bytes."""
