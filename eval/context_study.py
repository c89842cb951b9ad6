"""Train and score the rows of the context study."""

import sys

from studies.context.run import main

if __name__ == "__main__":
    sys.exit(main())
