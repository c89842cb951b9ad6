"""Training concept models."""
