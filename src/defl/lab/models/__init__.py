"""Models of the experiments in PyTorch (extra `torch`): the paper's, and small ones for CPUs."""
