"""Looking at data sets and converting them."""
