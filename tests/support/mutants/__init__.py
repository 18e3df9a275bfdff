"""Small breakages of the rules; the simulations and the exploration must find each of them."""
