"""How queues are shared evenly with few moves: the arithmetic behind BALANCED, SPREAD and WEIGHTED.

Topics and clients are numbers here, and sets of them are bits of an int: client 3 is in `clients` if bit 3 is set.  A
search through a thousand clients is then a few operations on thousand-bit numbers, not a loop.
"""
