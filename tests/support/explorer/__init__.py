"""The exhaustive exploration of small worlds: every interleaving, up to a number of moves."""
