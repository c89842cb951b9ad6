"""Train one cell of the identifiability study, or a list of cells in turn; both resume where they stopped."""

import sys

from worldmodel.md_vae.train import main

if __name__ == "__main__":
    sys.exit(main())
