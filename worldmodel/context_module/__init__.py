"""Encoder-decoders whose concepts can be intervened on, one by one and together."""
