"""The time between two samples of commits: as short as the cost of the tables allows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST_MS = 1_000
"""Shortest time between two samples of a queue (ms)."""
LONGEST_MS = 30_000
"""Longest time between two samples of a queue (ms), while there are many commits."""
LONGEST_PAST_MS = 60_000
"""Longest time between two samples of a queue while the past is read (ms)."""
LONG_PAST = 500_000
"""Number of records of the past from which on the longest interval is used at once."""
SHARE = 0.3
"""Maximum share of the time that appends to the tables should take; above it the interval grows, below it shrinks."""
MEASURED_S = 4.0
"""Time over which this share is measured (s)."""
_LEAST, _MOST = 0.7, 4.0
"""Limits of the factor of one change: the interval must adapt quickly to a sudden load, but the share varies between
appends."""


class SampleInterval:
    """The interval, and the time spent on the tables. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with the shortest interval; `clock` returns seconds, and never goes back."""
        self._clock = clock
        self.ms = SHORTEST_MS
        """Time between two samples (ms)."""
        self._longest_ms = LONGEST_MS
        self._began_s = clock()
        self._spent_s = 0.0

    def begin_past(self, records: int) -> None:
        """Prepare to read a past of this number of records."""
        self._longest_ms = LONGEST_PAST_MS
        if records > LONG_PAST:
            self.ms = LONGEST_PAST_MS

    def end_past(self) -> None:
        """End the past: from now on, records are read as they are appended."""
        self._longest_ms = LONGEST_MS
        self.ms = min(self.ms, LONGEST_MS)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time of the block as spent on the tables."""
        began_s = self._clock()
        yield
        self._spent_s += self._clock() - began_s

    def adjust(self) -> None:
        """Adapt the interval to the share of the time that was spent on the tables, after each measurement."""
        now_s = self._clock()
        if (passed_s := now_s - self._began_s) >= MEASURED_S:
            factor = min(max(self._spent_s / passed_s / SHARE, _LEAST), _MOST)
            self.ms = min(max(SHORTEST_MS, round(self.ms * factor)), self._longest_ms)
            self._began_s, self._spent_s = now_s, 0.0
