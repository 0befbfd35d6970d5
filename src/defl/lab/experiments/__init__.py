"""Experiments and benchmarks, and the tables and pictures of their results."""
