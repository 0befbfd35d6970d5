"""The simulator: participants on a virtual clock with seeded faults; no sockets."""
