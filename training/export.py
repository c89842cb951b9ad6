"""Make a small folder to publish from a finished run:"""

import sys

from worldmodel.training.export import main

if __name__ == "__main__":
    sys.exit(main())
