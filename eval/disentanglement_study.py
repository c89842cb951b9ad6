"""Train and score every row of a study, seed by seed; a killed study resumes where it stopped."""

import sys

from studies.disentanglement.run import main

if __name__ == "__main__":
    sys.exit(main())
