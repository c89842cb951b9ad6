"""MDDiff, EncDiff and VAE baselines: disentangled concepts of pictures."""
