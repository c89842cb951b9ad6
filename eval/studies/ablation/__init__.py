"""Ablation of the desk model."""
