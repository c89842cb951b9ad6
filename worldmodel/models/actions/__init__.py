"""Action paths: how actions reach the backbone."""
