"""The number of a turn to write the tables. A later turn has a higher one, also if the log of the leases was replaced.

The term of a lease orders the turns of one log. When the topic of the leases is deleted and created again, or loses
records, terms begin again; then the generation grows. Numbers of earlier releases, which only counted, need no
conversion: the next generation is above theirs.

>>> turn_number(generation=1, term=0) > turn_number(generation=0, term=4200)
True
>>> generation_of(turn_number(generation=7, term=4200))
7
"""

TERM_BITS = 40
"""With ten records of leases per second, terms grow for 3,000 years."""
_HIGHEST = 2**63 - 1
"""Delta stores the number as a signed integer of 64 bits."""


def turn_number(generation: int, term: int) -> int:
    """Return the number of a turn; numbers are compared as (generation, term).

    Raises:
        OverflowError: the term or the generation is too large.
    """
    number = (generation << TERM_BITS) + term
    if not (0 <= term < 1 << TERM_BITS and 0 <= number <= _HIGHEST):
        raise OverflowError(f"no turn has generation {generation} and term {term}")
    return number


def generation_of(number: int) -> int:
    """Return the generation of a turn's number."""
    return number >> TERM_BITS
