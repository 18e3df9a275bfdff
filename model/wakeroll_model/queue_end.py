"""The end offset of a queue, from the observers' reports and the producers' hints.

A report contains the true end offset at its time, but it may arrive late, and then it is too low or too high. So a
higher report counts at once, and a lower report counts when the reports of a whole window confirm it. A window is
closed by the first report that arrives at least `CONFIRM_MS` after its first one. A hint counts for `HINT_MS` at most,
and never against a closed window.
"""

from typing import NamedTuple

from msgspec import Struct

from wakeroll_model import config


class Window(NamedTuple):
    """Reports of one queue, from the first one until one that arrives at least `CONFIRM_MS` later."""

    largest: int
    smallest: int
    since_ms: int
    """When the first report arrived, by the shard's clock."""

    def contradicts(self, offset: int, named_ms: int) -> bool:
        """Return whether an offset that was reported or hinted at a time is beyond the queue's end."""
        return offset > self.largest and named_ms <= self.since_ms


class QueueEnd(Struct, array_like=True):
    """The known end of one queue; times are by the shard's clock, in ms."""

    reported: int = 0
    """The largest end that an observer reported and that no closed window contradicts; 0 before the first report."""
    largest: int = 0
    """Largest end in the reports of the open window."""
    smallest: int = 0
    since_ms: int = -1
    """Time of the first report of the open window; -1 before the first report."""
    hinted: int = 0
    """The largest end in recent hints of producers."""
    hinted_ms: int = 0
    """Time of the first hint with `hinted`."""

    def reported_or_hinted(self, now_ms: int) -> int:
        """Return the end of the queue by reports and hints."""
        return max(self.reported, self.hinted) if self._counts_hint(now_ms) else self.reported

    def end_for(self, from_offset: int, now_ms: int) -> int:
        """Return the end to send to a client that pulls from this offset.

        A hint is not sent, because it may be wrong. The client's own offset is not sent either if the queue does not
        seem to reach it, so that a wrong offset of a client is corrected.
        """
        is_plausible = self.since_ms < 0 or from_offset <= self.reported_or_hinted(now_ms)
        return max(self.reported, from_offset) if is_plausible else self.reported

    def hint(self, next_offset: int, now_ms: int) -> None:
        """Process a producer's hint."""
        if next_offset > self.hinted or not self._counts_hint(now_ms):
            self.hinted, self.hinted_ms = next_offset, now_ms

    def report(self, next_offset: int, now_ms: int) -> Window | None:
        """Process an observer's report; return the window that it closes, None if the window stays open."""
        if self.since_ms < 0:
            self.reported = next_offset
            self._open(next_offset, now_ms)
            return None
        self.largest, self.smallest = max(self.largest, next_offset), min(self.smallest, next_offset)
        if now_ms - self.since_ms < config.CONFIRM_MS:
            self.reported = max(self.reported, self.largest)
            return None
        closed = Window(self.largest, self.smallest, self.since_ms)
        self.reported = closed.largest
        if closed.contradicts(self.hinted, self.hinted_ms):
            self.hinted = 0
        self._open(next_offset, now_ms)
        return closed

    def _open(self, next_offset: int, now_ms: int) -> None:
        """Open a window with its first report."""
        self.largest = self.smallest = next_offset
        self.since_ms = now_ms

    def _counts_hint(self, now_ms: int) -> bool:
        return now_ms - self.hinted_ms < config.HINT_MS
