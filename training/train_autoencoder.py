"""Train an autoencoder: python training/train_autoencoder.py configs/desk/streaming_autoencoder.yaml ..."""

import sys

from worldmodel.training.autoencoder import main

if __name__ == "__main__":
    sys.exit(main())
