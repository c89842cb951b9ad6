"""MD-VAE, iVAE and beta-VAE on simulated mechanisms: what identifies latents."""
