"""Ablation of the desk model: one short training from scratch for every component."""

import sys

from studies.ablation.run import main

if __name__ == "__main__":
    sys.exit(main())
