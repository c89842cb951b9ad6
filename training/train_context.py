"""Train a context model or a baseline."""

import sys

from worldmodel.context_module.training.train import main

if __name__ == "__main__":
    sys.exit(main())
