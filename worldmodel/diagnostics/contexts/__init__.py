"""Measures of models whose concepts can be intervened on."""
