"""Measures for models whose concepts can be intervened on."""
