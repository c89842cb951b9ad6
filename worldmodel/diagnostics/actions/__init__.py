"""What actions do to a generated video."""
