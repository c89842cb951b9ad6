"""Training: the loop, the runs that use it, and their commands."""
