"""The paper's evaluation: its tables and figures measured here, beside the paper's own numbers.

J. Han et al., DeFL: Decentralized Weight Aggregation for Cross-silo Federated Learning. The
accuracies in accuracy.csv are those of its Tables 1 to 4.
"""
