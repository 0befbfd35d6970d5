"""User code and arithmetic, in child processes."""
