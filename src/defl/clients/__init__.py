"""What a user writes against; the only room for torch, scikit-learn and flwr."""
