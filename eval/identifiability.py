"""Collect the cells of the identifiability study, bound their scores, and write the tables and figures."""

import sys

from studies.identifiability.run import main

if __name__ == "__main__":
    sys.exit(main())
