"""The network that finds grippers and objects in frames."""
