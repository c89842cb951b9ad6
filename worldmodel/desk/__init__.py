"""What only the small desk model needs."""
