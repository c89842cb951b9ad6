"""World models of real robots from one command, all rows by one judge; see docs/results/real_robots.md."""
