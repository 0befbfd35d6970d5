"""The paper's rivals (FL, Swarm Learning, Biscotti) on DeFL's transport, weights and clients."""
