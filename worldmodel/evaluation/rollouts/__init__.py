"""Rollouts on held-out episodes."""
