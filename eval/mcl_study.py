"""Does MCL help a world model follow actions? The study of docs/results/mcl.md, which may be interrupted:"""

import sys

from studies.mcl.run import main

if __name__ == "__main__":
    sys.exit(main())
