"""What a training run will cost, before anything is loaded."""
