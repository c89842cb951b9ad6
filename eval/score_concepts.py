"""Score a concept model on a data set with known factors:"""

import sys

from worldmodel.mddiff.evaluation.scores import main

if __name__ == "__main__":
    sys.exit(main())
