"""Models of the identifiability study: MD-VAE, iVAE and beta-VAE."""
