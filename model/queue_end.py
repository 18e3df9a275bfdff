"""Where a queue ends, as far as the log says: observers report it, producers hint at it.

A report is absolute, but any single one may be late, and then it is too low or too high.  So a higher report counts at
once, and a lower one when the reports of a whole window say so; a window is closed by the first report that comes at
least `CONFIRM_MS` after its first one.  A hint counts for `HINT_MS` at most, and not against a closed window.
"""

from typing import NamedTuple

from msgspec import Struct

from model import config


class Window(NamedTuple):
    """Reports of one queue, from the first one until one that came at least `CONFIRM_MS` later."""

    largest: int
    smallest: int
    since_ms: int
    """When the first of them came."""

    def contradicts(self, offset: int, said_ms: int) -> bool:
        """Say whether a queue does not reach an offset that was named at that time."""
        return offset > self.largest and said_ms <= self.since_ms


class QueueEnd(Struct, array_like=True):
    """What is believed about the end of one queue; times are of one clock that never falls, in ms."""

    reported: int = 0
    """The largest end that an observer reported and that no closed window contradicts; 0 before the first report."""
    largest: int = 0
    """Of the window that is open."""
    smallest: int = 0
    since_ms: int = -1
    """First report of the window that is open; -1 before the first report."""
    hinted: int = 0
    """The largest end that producers hinted at lately."""
    hinted_ms: int = 0
    """When `hinted` was said first."""

    def believed(self, now_ms: int) -> int:
        """Return the end that the queue has by reports and hints."""
        return max(self.reported, self.hinted) if self._counts_hint(now_ms) else self.reported

    def told(self, from_offset: int, now_ms: int) -> int:
        """Return the end that somebody is told who pulls from an offset.

        No hint is told, for it may be a lie, nor is an offset repeated that the queue does not seem to reach: whoever
        was misled once would be for ever.
        """
        is_plausible = self.since_ms < 0 or from_offset <= self.believed(now_ms)
        return max(self.reported, from_offset) if is_plausible else self.reported

    def hint(self, next_offset: int, now_ms: int) -> None:
        """Take a producer's word."""
        if next_offset > self.hinted or not self._counts_hint(now_ms):
            self.hinted, self.hinted_ms = next_offset, now_ms

    def report(self, next_offset: int, now_ms: int) -> Window | None:
        """Take an observer's report; return the window that it closes, None if that goes on."""
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
        """Begin a window with its first report."""
        self.largest = self.smallest = next_offset
        self.since_ms = now_ms

    def _counts_hint(self, now_ms: int) -> bool:
        return now_ms - self.hinted_ms < config.HINT_MS
