"""digits-torch: a Flower / PyTorch app."""
