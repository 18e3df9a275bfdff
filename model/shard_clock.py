"""The clock of a shard: made of the observers' ticks, so that neither a dark log nor a wrong log clock is silence."""

from msgspec import Struct

from model import config
from model.events import Tick


class Moment(Struct, frozen=True):
    """When a record happened, as a machine may know it."""

    now_ms: int
    """The shard's clock: deadlines are set and judged by it; it never falls."""
    at_ms: int
    """The log's own time of the record, for people to read."""
    may_expire: bool
    """False for a while after a dark log: the clients are reconnecting."""
    ticked_ms: int = -1
    """The clock at the last tick; -1: the same as `now_ms`."""

    @property
    def judged_ms(self) -> int:
        """The time by which sessions end: `now_ms` may be up to 2 s more, by a record of a log that is ahead."""
        return self.now_ms if self.ticked_ms < 0 else self.ticked_ms


class Line(Struct, array_like=True):
    """Time as one observer has seen it pass."""

    at_ms: int
    """The shard's clock as this observer's ticks alone would have it."""
    uptime_ms: int
    """The observer's monotonic clock at its last tick; without one, the log time of that tick."""


class ShardClock(Struct, array_like=True):
    """Time as one shard sees it; epoch milliseconds, behind the log's by all the time that was dark.

    It starts at the first record's time.  Each observer's monotonic clock draws a line of real time, on which one tick
    counts for at most 3 s; the clock is the highest line.  So it never runs faster than real time, however many
    observers there are, however late their ticks (up to 2 s) and whatever the log's clock does.  A tick without an
    uptime counts by the log's time, for at most 1 s.  A record between two ticks counts by the log's time, for at most
    2 s.
    """

    at_tick_ms: int = -1
    """The clock at the last tick; -1 before the first record."""
    tick_ms: int = 0
    """The log's time of the last tick."""
    now_ms: int = 0
    """The latest time given out."""
    grace_until_ms: int = -config.GRACE_EVERY_MS
    """Nobody expires before."""
    lines: dict[str, Line] = {}
    """Observer -> its line; the one that was heard last comes last."""

    def read(self, timestamp_ms: int, tick: Tick | None = None) -> Moment:
        """Return the moment of a record with this log time (epoch ms); a tick also moves the clock on."""
        if self.at_tick_ms < 0:
            self.at_tick_ms = self.tick_ms = self.now_ms = timestamp_ms
        if tick is None:
            step = min(max(timestamp_ms - self.tick_ms, 0), config.SLACK_MS)
            self.now_ms = max(self.now_ms, self.at_tick_ms + step)
        else:
            self._advance(timestamp_ms, tick)
        return Moment(self.now_ms, timestamp_ms, self.now_ms >= self.grace_until_ms, self.at_tick_ms)

    def _advance(self, timestamp_ms: int, tick: Tick) -> None:
        passed_ms = timestamp_ms - self.tick_ms
        uptime_ms, most_ms = timestamp_ms, config.UNTIMED_STEP_MS
        if tick.uptime_ms is not None:
            uptime_ms, most_ms = tick.uptime_ms, config.LONGEST_STEP_MS
        line = self.lines.pop(tick.observer, None)
        if line is None:
            # The first tick of all has nothing before it to count from but the log's time of the first record.
            is_first = not self.lines
            at_ms = self.at_tick_ms - (0 if is_first else config.SLACK_MS)
            line = Line(at_ms, uptime_ms - (min(max(passed_ms, 0), most_ms) if is_first else 0))
        if len(self.lines) >= config.MAX_OBSERVERS:
            del self.lines[next(iter(self.lines))]
        since_ms = uptime_ms - line.uptime_ms
        if tick.uptime_ms is None or since_ms > 0:  # a tick that is repeated, or late, says nothing
            line.uptime_ms = uptime_ms
        # A line that fell behind, as of an observer that was suspended, goes on a little below the highest one:
        # this tick may be late, and the next one not.  Else two observers would drive the clock by their delays.
        line.at_ms = max(line.at_ms + min(max(since_ms, 0), most_ms), self.at_tick_ms - config.SLACK_MS)
        self.lines[tick.observer] = line
        self.at_tick_ms = max(self.at_tick_ms, line.at_ms)
        self.now_ms = max(self.now_ms, self.at_tick_ms)
        is_dark = max(passed_ms, since_ms) > config.DARK_MS
        if is_dark and self.now_ms >= self.grace_until_ms + config.GRACE_EVERY_MS:
            self.grace_until_ms = self.now_ms + config.GRACE_MS
        self.tick_ms = timestamp_ms
