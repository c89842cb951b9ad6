"""Action-conditioned video generation for robots, and the measures that show whether actions control it."""
