"""Rules that turn the rows of one round into one aggregate; pure functions on (m, d) arrays."""
