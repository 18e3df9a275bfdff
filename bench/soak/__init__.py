"""A soak: the whole system with real consumers, while a fault occurs every half minute or so."""
