"""From a folder of robot data to a report in one command, implemented in `run.py`."""
