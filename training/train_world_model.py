"""Train a world model:"""

import sys

from worldmodel.training.world_model import main

if __name__ == "__main__":
    sys.exit(main())
