"""What a config makes of a run: data, model, validation."""
