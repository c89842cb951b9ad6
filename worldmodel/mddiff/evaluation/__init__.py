"""Scores and images of concept models."""
