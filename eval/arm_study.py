"""Do two arms compose that a world model never saw moving together?"""

import sys

from studies.arms.run import main

if __name__ == "__main__":
    sys.exit(main())
