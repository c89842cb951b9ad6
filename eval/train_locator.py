"""Train the gripper locator on tabletop or RoboTwin episodes with poses:"""

import sys

from worldmodel.locator.train import main

if __name__ == "__main__":
    sys.exit(main())
