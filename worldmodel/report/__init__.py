"""Pages, figures and intervals, one of each."""
