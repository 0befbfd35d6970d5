"""Public data sets as arrays, read from the user's data folder or downloaded into it."""
