"""Train a VAE baseline of the concept study."""

import sys

from worldmodel.mddiff.training.vae_baseline import main

if __name__ == "__main__":
    sys.exit(main())
