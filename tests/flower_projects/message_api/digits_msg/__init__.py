"""digits-msg: a Flower app."""
