"""Experiments and benchmarks: what is measured, and the tables and pictures made of it."""
