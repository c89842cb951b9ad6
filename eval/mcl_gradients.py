"""How near first-order MCL comes to double backward: see eval/bench/mcl_gradients.py."""

import sys

from bench.mcl_gradients import main

if __name__ == "__main__":
    sys.exit(main())
