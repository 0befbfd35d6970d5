"""What a node reports: status, metrics, history, models, certificates."""
