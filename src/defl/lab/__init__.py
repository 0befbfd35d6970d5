"""The laboratory: attacks, data sets, models, baselines, experiments.

The product never imports it.
"""
