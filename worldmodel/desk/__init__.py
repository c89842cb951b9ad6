"""Components that only the small desk model uses."""
