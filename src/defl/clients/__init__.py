"""What a user writes against; the only package that imports torch, scikit-learn and flwr."""
