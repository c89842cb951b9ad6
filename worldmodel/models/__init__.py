"""The world model and its submodules."""
