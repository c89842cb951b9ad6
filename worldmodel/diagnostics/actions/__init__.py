"""Effects of actions on a generated video."""
