"""Score a concept model on a dataset with ground-truth factors:"""

import sys

from worldmodel.mddiff.evaluation.scores import main

if __name__ == "__main__":
    sys.exit(main())
