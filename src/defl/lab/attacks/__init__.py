"""Honest update and random generator in, poisoned update out."""
