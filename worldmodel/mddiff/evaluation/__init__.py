"""Scores and pictures of concept models."""
