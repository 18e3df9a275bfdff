"""The control plane's topics, and what a broker is asked about topics."""
