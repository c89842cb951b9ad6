"""Mechanistic contrastive learning (MCL), one module for every host."""
