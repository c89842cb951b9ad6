"""Roll a world model out on held-out episodes and say how good and how obedient it is:"""

import sys

from worldmodel.evaluation.rollouts.run import main

if __name__ == "__main__":
    sys.exit(main())
