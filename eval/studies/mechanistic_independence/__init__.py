"""Which criterion of mechanistic independence holds up."""
