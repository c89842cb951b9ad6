"""Train a concept model, one stage at a time:"""

import sys

from worldmodel.mddiff.training.concepts import main

if __name__ == "__main__":
    sys.exit(main())
