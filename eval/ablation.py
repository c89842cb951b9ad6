"""What each part of the desk model is worth: one short training for every part, from scratch."""

import sys

from studies.ablation.run import main

if __name__ == "__main__":
    sys.exit(main())
