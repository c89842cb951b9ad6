"""An end-to-end smoke test on a CPU: collect, encode, train 2 steps, resume to 4, roll out, write metrics."""

import sys

from worldmodel.training.smoke_test import main

if __name__ == "__main__":
    sys.exit(main())
