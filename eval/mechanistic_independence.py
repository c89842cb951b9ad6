"""Mechanistic independence: recovery against overlap, the gap each criterion uses, and component counts."""

import sys

from studies.mechanistic_independence.run import main

if __name__ == "__main__":
    sys.exit(main())
