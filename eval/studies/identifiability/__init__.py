"""Recovery of true latents: MD-VAE, iVAE and beta-VAE."""
