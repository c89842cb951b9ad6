"""Inspecting and converting datasets."""
