"""Disentanglement scores of codes against ground-truth factors."""
