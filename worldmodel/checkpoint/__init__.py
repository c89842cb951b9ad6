"""A saved world model as a folder."""
