"""How close first-order MCL is to double backward; implemented in eval/bench/mcl_gradients.py."""

import sys

from bench.mcl_gradients import main

if __name__ == "__main__":
    sys.exit(main())
