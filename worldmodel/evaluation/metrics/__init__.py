"""Metrics on arrays and tensors."""
