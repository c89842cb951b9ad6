"""The command as a module: `python -m worldmodel COMMAND`, `accelerate launch -m worldmodel train`."""

import sys

from worldmodel.cli import main

if __name__ == "__main__":
    sys.exit(main())
