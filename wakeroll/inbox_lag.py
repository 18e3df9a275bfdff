"""Detection of a client that no longer reads its inbox partition to the end.

For example, the partition has no leader or is not readable. Such a client would keep queues that were revoked. The end
offset of the partition shows the lag, even while the coordinator sends nothing.
"""

PAUSE_MS = 15_000
"""A longer pause than this between two checks means that the process was suspended (ms)."""


class Hearing:
    """Progress of reading an inbox, compared with its end offsets. Times are ms of one monotonic clock."""

    def __init__(self, next_offset: int, now_ms: int) -> None:
        """Begin at `next_offset`, the end of the partition."""
        self.next_offset = next_offset
        """Offset of the next record to read."""
        self._heard_ms = self._looked_ms = now_ms
        self._mark: int | None = None

    def look(self, end: int | None, now_ms: int, first: int = 0) -> None:
        """Process the end offset of the partition as of now; None if the brokers did not return it.

        After a suspension of the process, the measurement starts again. Records before the offset `first` are deleted
        and not waited for; if the client missed a decision among them, the coordinator sends it again. An end below the
        position belongs to another log, of which nothing was read. See `wakeroll.log_position`.
        """
        self.next_offset = max(self.next_offset, first)
        if now_ms - self._looked_ms > PAUSE_MS:
            self._heard_ms, self._mark = now_ms, None
        self._looked_ms = now_ms
        if end is not None and end < self.next_offset:
            self._mark = None
            return
        if self._mark is not None and self.next_offset >= self._mark:
            self._heard_ms, self._mark = now_ms, None
        if end is None:
            return
        if self.next_offset == end:
            self._heard_ms, self._mark = now_ms, None
        elif self._mark is None:
            self._mark = end

    def begin(self, next_offset: int) -> None:
        """Continue at `next_offset` of another log. Until its end is reached, the client counts as lagging."""
        self.next_offset, self._mark = next_offset, None

    def is_deaf(self, now_ms: int, session_timeout_ms: int) -> bool:
        """Return whether for longer than a session no end offset was known, or no known end offset was reached."""
        return now_ms - self._heard_ms > session_timeout_ms
