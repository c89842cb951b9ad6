"""Truth and several models over time, with the path of the gripper, as one picture:"""

import sys

from worldmodel.evaluation.compare_models import main

if __name__ == "__main__":
    sys.exit(main())
