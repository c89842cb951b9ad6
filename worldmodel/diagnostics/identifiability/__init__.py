"""Agreement of representations: MCC, ICA, near-identifiability."""
