"""Training a context model."""
