"""How actions reach the backbone: one file a path."""
