"""Table 2: the protocol of low data and transfer."""
