"""Concept models of pictures: image VAEs, EncDiff and MDDiff."""
