"""Vanilla autoencoders + ICA: do runs agree with each other, and with the true factors?"""

import sys

from studies.near_identifiability.run import main

if __name__ == "__main__":
    sys.exit(main())
