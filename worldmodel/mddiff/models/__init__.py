"""Concept models of images: VAEs, EncDiff and MDDiff."""
