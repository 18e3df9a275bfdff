"""Whether a client hears: does it still read all that its partition of the inbox has?

A client that does not, because its partition has no leader or may not be read, would go on with queues that it was told
to give up.  The end of the partition is a fact that it can ask for, whether or not the coordinator has anything to say.
"""

PAUSE_MS = 15_000
"""Who has not looked for this long has not run."""


class Hearing:
    """How far an inbox was read, against the ends that were seen of it.  Times are ms of one monotonic clock."""

    def __init__(self, next_offset: int, now_ms: int) -> None:
        """Begin at `next_offset`, the end of the partition."""
        self.next_offset = next_offset
        """Of the next record to read."""
        self._heard_ms = self._looked_ms = now_ms
        self._mark: int | None = None

    def look(self, end: int | None, now_ms: int) -> None:
        """Take the partition's end as of now; None if the brokers do not tell it.

        A process that was suspended has not looked either: it begins again.
        """
        if now_ms - self._looked_ms > PAUSE_MS:
            self._heard_ms, self._mark = now_ms, None
        self._looked_ms = now_ms
        if self._mark is not None and self.next_offset >= self._mark:
            self._heard_ms, self._mark = now_ms, None
        if end is None:
            return
        if self.next_offset >= end:
            self._heard_ms, self._mark = now_ms, None
        elif self._mark is None:
            self._mark = end

    def is_deaf(self, now_ms: int, session_timeout_ms: int) -> bool:
        """Return whether for more than a session it has not been read to an end that was seen, or none was seen."""
        return now_ms - self._heard_ms > session_timeout_ms
