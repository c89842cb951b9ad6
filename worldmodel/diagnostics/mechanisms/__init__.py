"""Mechanism diversity and mechanistic independence of generators."""
