"""The control plane's topics, and queries about topics to the brokers."""
