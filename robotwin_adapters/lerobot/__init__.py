"""LeRobot datasets."""
