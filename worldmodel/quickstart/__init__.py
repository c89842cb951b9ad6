"""From a folder of robot data to a report in one command; see `run.py`."""
