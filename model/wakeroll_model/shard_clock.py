"""The clock of a shard, driven by the observers' ticks: a dark log or a wrong log clock does not end sessions."""

from msgspec import Struct

from wakeroll_model import config
from wakeroll_model.events import Tick


class Moment(Struct, frozen=True):
    """The time of a record, for the machines."""

    now_ms: int
    """The shard's clock, which deadlines use; it never goes back."""
    at_ms: int
    """The log time of the record, epoch ms; for people to read."""
    may_expire: bool
    """Whether members may expire; False for a while after a dark log, because the clients are reconnecting."""
    ticked_ms: int = -1
    """The shard's clock at the last tick; -1: the same as `now_ms`."""

    @property
    def judged_ms(self) -> int:
        """The time at which sessions end: the clock at the last tick.

        A record between two ticks may set `now_ms` to up to 2 s above this time, if the log's clock is ahead.
        """
        return self.now_ms if self.ticked_ms < 0 else self.ticked_ms


class Line(Struct, array_like=True):
    """Elapsed time, as measured by one observer."""

    at_ms: int
    """The shard's clock as this observer's ticks alone would set it."""
    uptime_ms: int
    """The observer's monotonic clock at its last tick; if the tick carries none, the log time of that tick."""


class ShardClock(Struct, array_like=True):
    """The clock of one shard, in epoch milliseconds; it is behind the log's clock by all dark time.

    It starts at the first record's log time. Each observer's monotonic clock yields a line of real time, on which one
    tick counts for at most 3 s. The clock is the highest line. So it never runs faster than real time, whatever the
    number of observers, the delay of their ticks (up to 2 s) and the log's clock. A tick without an uptime counts by
    the log's time, for at most 1 s. A record between two ticks counts by the log's time, for at most 2 s.
    """

    at_tick_ms: int = -1
    """The clock at the last tick; -1 before the first record."""
    tick_ms: int = 0
    """Log time of the last tick, epoch ms."""
    now_ms: int = 0
    """The latest time that `read` returned."""
    grace_until_ms: int = -config.GRACE_EVERY_MS
    """Earliest time at which a member expires."""
    lines: dict[str, Line] = {}
    """Observer -> its line; the latest observer comes last."""

    def read(self, timestamp_ms: int, tick: Tick | None = None) -> Moment:
        """Return the moment of a record with this log time (epoch ms); a tick also advances the clock."""
        if tick is None:
            self.pass_to(timestamp_ms)
        else:
            if self.at_tick_ms < 0:
                self._begin(timestamp_ms)
            self._advance(timestamp_ms, tick)
        return Moment(self.now_ms, timestamp_ms, self.now_ms >= self.grace_until_ms, self.at_tick_ms)

    def pass_to(self, timestamp_ms: int) -> int:
        """Advance the clock by a record that is not a tick; return it (`now_ms`)."""
        if self.at_tick_ms < 0:
            self._begin(timestamp_ms)
        step_ms = timestamp_ms - self.tick_ms
        if step_ms > config.SLACK_MS:
            step_ms = config.SLACK_MS
        if step_ms > 0 and (now_ms := self.at_tick_ms + step_ms) > self.now_ms:
            self.now_ms = now_ms
        return self.now_ms

    def follow(self, timestamp_ms: int) -> Moment:
        """Set the clock to the log time of a record of Kafka's own groups, where nothing expires by this clock."""
        self.at_tick_ms = self.tick_ms = self.now_ms = max(self.now_ms, timestamp_ms)
        return Moment(self.now_ms, timestamp_ms, may_expire=False)

    def _begin(self, timestamp_ms: int) -> None:
        self.at_tick_ms = self.tick_ms = self.now_ms = timestamp_ms

    def _advance(self, timestamp_ms: int, tick: Tick) -> None:
        passed_ms = timestamp_ms - self.tick_ms
        uptime_ms, most_ms = timestamp_ms, config.UNTIMED_STEP_MS
        if tick.uptime_ms is not None:
            uptime_ms, most_ms = tick.uptime_ms, config.LONGEST_STEP_MS
        line = self.lines.pop(tick.observer, None)
        if line is None:
            # The first tick of all counts from the log time of the first record, because there is no earlier tick.
            is_first = not self.lines
            at_ms = self.at_tick_ms - (0 if is_first else config.SLACK_MS)
            line = Line(at_ms, uptime_ms - (min(max(passed_ms, 0), most_ms) if is_first else 0))
        if len(self.lines) >= config.MAX_OBSERVERS:
            del self.lines[next(iter(self.lines))]
        since_ms = uptime_ms - line.uptime_ms
        if tick.uptime_ms is None or since_ms > 0:  # a repeated or late tick adds no time
            line.uptime_ms = uptime_ms
        # A line that fell behind, as after an observer was suspended, continues a little below the highest line: this
        # tick may be late, and the next one not. Otherwise two observers would drive the clock by their delays.
        line.at_ms = max(line.at_ms + min(max(since_ms, 0), most_ms), self.at_tick_ms - config.SLACK_MS)
        self.lines[tick.observer] = line
        self.at_tick_ms = max(self.at_tick_ms, line.at_ms)
        self.now_ms = max(self.now_ms, self.at_tick_ms)
        is_dark = max(passed_ms, since_ms) > config.DARK_MS
        if is_dark and self.now_ms >= self.grace_until_ms + config.GRACE_EVERY_MS:
            self.grace_until_ms = self.now_ms + config.GRACE_MS
        self.tick_ms = timestamp_ms
