"""Rates at which messages arrive in a queue and are consumed, and the time until a group has caught up."""

from collections.abc import Sequence

from msgspec import Struct

WINDOW_MS = 60_000
"""Minimum time over which rates are measured, once a queue has been watched for this long (ms); the maximum is twice as
long."""
_SHORTEST_MS = 5_000
"""Minimum time between the first and the last moment for any rate (ms)."""


class Rates(Struct, frozen=True):
    """Messages per second, and the time until all are consumed if the rates stay the same."""

    arriving_per_s: float | None = None
    """Messages that arrive per second; None if that is not known yet."""
    consumed_per_s: float | None = None
    catch_up_ms: int | None = None
    """Time until all messages are consumed (ms); Time until all messages are consumed (ms); 0 without a lag; None if it
    is not known, or the lag does not fall."""


NOT_KNOWN = Rates()

_Mark = tuple[int, int, int]
"""Log time (epoch ms), offset of the next message to consume, end."""


class RateMeter:
    """The moments between which the rates of a queue are computed."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self) -> None:
        self._first: _Mark | None = None
        self._middle: _Mark | None = None
        self._last: _Mark | None = None

    def note(self, at_ms: int, unread: int, end: int) -> None:
        """Note a moment with a new end of the queue.

        A reset to an earlier message, and a queue that was truncated, begin the measurement again.
        """
        now = (at_ms, unread, end)
        if self._middle is None or self._last is None or self._last[1] > unread or self._last[2] > end:
            self._first = self._middle = self._last = now
            return
        if at_ms - self._middle[0] >= WINDOW_MS:
            self._first, self._middle = self._middle, now
        self._last = now

    def forget(self) -> None:
        """Forget all moments, because the offsets are not known any more."""
        self._first = self._middle = self._last = None

    def rates(self, lag: int | None) -> Rates:
        """Return the rates between the first and the last moment, for a lag in messages."""
        if lag is None or self._first is None or self._last is None:
            return NOT_KNOWN
        took_ms = self._last[0] - self._first[0]
        if took_ms < _SHORTEST_MS:
            return Rates(catch_up_ms=None if lag else 0)
        consumed = (self._last[1] - self._first[1]) * 1_000 / took_ms
        arriving = (self._last[2] - self._first[2]) * 1_000 / took_ms
        return Rates(round(arriving, 1), round(consumed, 1), time_for(lag, consumed - arriving))


def time_for(lag: int, falls_per_s: float) -> int | None:
    """Return the time (ms) until a lag is consumed that falls by some messages per second; None if it does not fall.

    >>> time_for(600, 10.0), time_for(600, 0.0), time_for(0, -5.0)
    (60000, None, 0)
    """
    if lag == 0:
        return 0
    return round(lag * 1_000 / falls_per_s) if falls_per_s > 0 else None


def rates_of_all(lag: int | None, parts: Sequence[Rates]) -> Rates:
    """Return the rates of several queues together, for the sum of their known lags.

    Queues whose rates are not known are left out. All have caught up when the slowest one has.
    """
    known = [one for one in parts if one.consumed_per_s is not None]
    times = [one.catch_up_ms for one in known if one.catch_up_ms is not None]
    catch_up_ms = max(times) if lag and times and len(times) == len(known) else None
    if not known:
        return Rates(catch_up_ms=0 if lag == 0 else None)
    return Rates(
        round(sum(one.arriving_per_s or 0.0 for one in known), 1),
        round(sum(one.consumed_per_s or 0.0 for one in known), 1),
        0 if lag == 0 else catch_up_ms,
    )
