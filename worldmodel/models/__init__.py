"""The world model and its parts."""
