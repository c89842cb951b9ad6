"""Evaluate rollouts of a world model on held-out episodes: video quality and action following."""

import sys

from worldmodel.evaluation.rollouts.run import main

if __name__ == "__main__":
    sys.exit(main())
