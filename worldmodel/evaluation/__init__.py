"""Evaluation of trained models."""
