"""Image datasets with ground-truth factors of variation."""
