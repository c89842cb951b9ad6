"""Real robots, all rows by one judge:"""

import sys

from studies.real_robots.run import main

if __name__ == "__main__":
    sys.exit(main())
