"""One step function for each family of concept models."""
