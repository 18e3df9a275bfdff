"""The clock of a shard: made of the log's ticks, so that a dark log does not count as silence."""

from msgspec import Struct

from model import config


class Moment(Struct, frozen=True):
    """When a record happened, as a machine may know it."""

    now_ms: int
    """The shard's clock: deadlines are set and judged by it; it never falls."""
    at_ms: int
    """The log's own time of the record, for people to read."""
    may_expire: bool
    """False for a while after a dark log: the clients are reconnecting."""


class ShardClock(Struct, array_like=True):
    """Time as one shard sees it; epoch milliseconds, behind the log's by all the time that was dark.

    It starts at the first record's time. A tick moves it by what passed since the last tick, at least 0 and at most
    5 s: a leader's clock that is set back or forth does no harm.
    """

    at_tick_ms: int = -1
    """The clock at the last tick; -1 before the first record."""
    tick_ms: int = 0
    """The log's time of the last tick."""
    now_ms: int = 0
    """The latest time given out."""
    grace_until_ms: int = 0
    """Nobody expires before."""

    def read(self, timestamp_ms: int, *, tick: bool) -> Moment:
        """Return the moment of a record with this log time (epoch ms); a tick also moves the clock on."""
        if self.at_tick_ms < 0:
            self.at_tick_ms = self.tick_ms = self.now_ms = timestamp_ms
        step = min(max(timestamp_ms - self.tick_ms, 0), config.LONGEST_STEP_MS)
        self.now_ms = max(self.now_ms, self.at_tick_ms + step)
        if tick:
            self.at_tick_ms += step
            if timestamp_ms - self.tick_ms > config.LONGEST_STEP_MS:
                self.grace_until_ms = self.now_ms + config.GRACE_MS
            self.tick_ms = timestamp_ms
        return Moment(self.now_ms, timestamp_ms, self.now_ms >= self.grace_until_ms)
