"""Table 2: the whole protocol in one command that may be interrupted and restarted:"""

import sys

from studies.table2.run import main

if __name__ == "__main__":
    sys.exit(main())
