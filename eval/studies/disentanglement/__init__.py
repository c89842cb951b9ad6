"""Concept disentanglement: EncDiff, MDDiff and VAEs."""
