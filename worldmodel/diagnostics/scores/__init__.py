"""Disentanglement scores of codes against known factors."""
