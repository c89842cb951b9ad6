"""The action-sensitivity report."""
