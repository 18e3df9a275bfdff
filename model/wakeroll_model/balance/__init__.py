"""Even assignments with few moves: the algorithms behind BALANCED, SPREAD and WEIGHTED.

Topics and clients are numbers here, and sets of them are the bits of an int: client 3 is in `clients` if bit 3 is set.
A search through a thousand clients then takes a few operations on thousand-bit numbers instead of a loop.
"""
