"""RoboTwin datasets."""
