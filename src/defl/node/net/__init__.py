"""A peer's bytes: connections, TLS, framing, admission, verification."""
