"""Public data sets as arrays: found in a folder that the user names, or downloaded into it."""
