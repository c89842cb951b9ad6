"""Pictures with known factors."""
