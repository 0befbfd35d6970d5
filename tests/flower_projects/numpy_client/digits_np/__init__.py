"""digits-np: a Flower app."""
