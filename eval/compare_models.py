"""One figure of the true video and those of several models over time, with the path of the gripper:"""

import sys

from worldmodel.evaluation.compare_models import main

if __name__ == "__main__":
    sys.exit(main())
