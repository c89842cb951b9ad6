"""The action-sensitivity report: does the video follow its actions?"""

import sys

from worldmodel.evaluation.sensitivity.run import main

if __name__ == "__main__":
    sys.exit(main())
