"""The history of a queue's end offset, by which a lag in messages is converted to a lag in time."""

from array import array
from bisect import bisect_right
from typing import NamedTuple

MOST = 64
"""Maximum number of samples per queue: samples of the last minutes are dense, older ones are thinned out."""


class Behind(NamedTuple):
    """The moment since which messages wait."""

    since_ms: int
    """Log time (epoch ms) at which the end of the queue was at the committed offset, so that the next message arrived
    then."""
    is_longer: bool
    """Whether the messages have waited longer, because the history does not reach back to their arrival."""


class EndHistory:
    """End offsets of a queue at some moments; bounded in size, however long the history is kept.

    Between two moments the queue is assumed to grow at a constant rate. The estimated arrival of a single message
    between them is too early by at most the time between the moments: 60 s if only routes report the end.
    """

    __slots__ = ("_ends", "_times", "first")

    def __init__(self) -> None:
        self.first: int | None = None
        """Offset of the first message that is not deleted; None if no route has shown it."""
        self._times = array("q")
        self._ends = array("q")

    @property
    def end(self) -> int | None:
        """The newest known end; None before the first one."""
        return self._ends[-1] if self._ends else None

    def note(self, end: int, at_ms: int) -> bool:
        """Add an end that was known at a log time (epoch ms); return whether it differs from the newest one.

        An end below the newest one means that the queue was truncated or recreated, so the history begins again.
        """
        times, ends = self._times, self._ends
        if not ends:
            times.append(at_ms)
            ends.append(end)
            return True
        at_ms = max(at_ms, times[-1])  # log times of different partitions have no order
        if end < ends[-1]:
            del times[:], ends[:]
        elif end == ends[-1] and len(ends) > 1 and ends[-2] == end:
            times[-1] = at_ms
            return False
        is_new = not ends or end != ends[-1]
        times.append(at_ms)
        ends.append(end)
        if len(times) > MOST:
            self._thin()
        return is_new

    def behind(self, offset: int) -> Behind | None:
        """Return since when messages from this offset on wait; None if the queue does not reach beyond the offset."""
        ends, times = self._ends, self._times
        if not ends or offset >= ends[-1]:
            return None
        after = bisect_right(ends, offset)
        if after == 0:
            return Behind(times[0], is_longer=True)
        before = after - 1
        share = (offset - ends[before]) / (ends[after] - ends[before])
        return Behind(times[before] + round(share * (times[after] - times[before])), is_longer=False)

    def _thin(self) -> None:
        """Drop every second sample of the older half; keep the oldest one."""
        half = MOST // 2
        for values in (self._times, self._ends):
            values[:half] = values[:half:2]
