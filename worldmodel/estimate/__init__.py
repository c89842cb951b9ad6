"""Estimates the cost of a training run without loading a model."""
