"""The time between two samples of commits: as short as the cost of the tables allows."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHORTEST_MS = 1_000
"""Shortest time between two samples of a queue (ms)."""
LONGEST_MS = 30_000
"""Longest time between two samples of a queue (ms), while there are many commits."""
LONGEST_PAST_MS = 60_000
"""The same while the past is read."""
LONG_PAST = 500_000
"""Records of a past of which so few samples are taken from the beginning."""
SHARE = 0.3
"""Share of the time that the tables should take at most; samples become fewer above it, and more frequent below."""
MEASURED_S = 4.0
"""Time over which that share is measured (s)."""
_LEAST, _MOST = 0.7, 4.0
"""Factors of one change: a sudden load must not wait long, and the share varies with the appends."""


class SampleInterval:
    """The interval, and the time that the tables have taken. For one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with the shortest interval; `clock` returns seconds, and never goes back."""
        self._clock = clock
        self.ms = SHORTEST_MS
        """Time between two samples (ms)."""
        self._longest_ms = LONGEST_MS
        self._began_s = clock()
        self._spent_s = 0.0

    def begin_past(self, records: int) -> None:
        """Prepare to read so many records at once."""
        self._longest_ms = LONGEST_PAST_MS
        if records > LONG_PAST:
            self.ms = LONGEST_PAST_MS

    def end_past(self) -> None:
        """Go on with records as they come."""
        self._longest_ms = LONGEST_MS
        self.ms = min(self.ms, LONGEST_MS)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Let the time of the block count as spent for the tables."""
        began_s = self._clock()
        yield
        self._spent_s += self._clock() - began_s

    def adjust(self) -> None:
        """Change the interval by the share of the time that was spent for the tables, when that was measured."""
        now_s = self._clock()
        if (passed_s := now_s - self._began_s) >= MEASURED_S:
            factor = min(max(self._spent_s / passed_s / SHARE, _LEAST), _MOST)
            self.ms = min(max(SHORTEST_MS, round(self.ms * factor)), self._longest_ms)
            self._began_s, self._spent_s = now_s, 0.0
