"""Before the start: keys, configuration, checks, local federations."""
