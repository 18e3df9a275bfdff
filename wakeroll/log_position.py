"""The position of a reader in one partition, and whether the partition still has the log that was read.

A topic that is deleted and created again, a partition that lost its tail and a restored cluster have another log under
the same name. Its offsets begin again, so an old position is meaningless in it.
"""

LONGEST_STILL_MS = 30_000
"""If the partition has records and none arrives for this long (ms), the reader needs a new client of Kafka."""


class LogPosition:
    """How far one partition was read. Times are ms of one monotonic clock.

    Evidence that the log is another one is returned as a phrase; an empty one means that there is none.
    """

    def __init__(self, next_offset: int, now_ms: int) -> None:
        """Begin at `next_offset`; 0 for the first record of the log, whatever its offset is."""
        self.next_offset = next_offset
        """Offset of the next record to read."""
        self._leader_epoch = -1
        self._moved_ms = now_ms
        self._is_behind = False

    def read(self, offset: int, leader_epoch: int | None, now_ms: int) -> str:
        """Note a record that was read; return evidence that it is of another log.

        In one log, offsets grow from record to record, and leader epochs never shrink.
        """
        epoch = -1 if leader_epoch is None else leader_epoch
        if offset < self.next_offset:
            return f"it continues at offset {offset}"
        if 0 <= epoch < self._leader_epoch:
            return f"its leader epoch was {self._leader_epoch}, and is {epoch} at offset {offset}"
        self._leader_epoch = max(self._leader_epoch, epoch)
        self.next_offset, self._moved_ms, self._is_behind = offset + 1, now_ms, False
        return ""

    def look(self, first: int, end: int, now_ms: int, *, was_refused: bool = False) -> str:
        """Compare the position with the first offset and the end offset of the partition; return evidence.

        Args:
            first: offset of the first record; 0 if it is not known. Earlier records are deleted, and not waited for.
            end: end offset, which was queried after the last record was read.
            now_ms: the time of the call.
            was_refused: whether the brokers refused the position as out of range. Then it was above the end, or below
                `first`, which never moves back.
        """
        if end < self.next_offset:
            return f"it ends at offset {end}"
        if was_refused and first <= self.next_offset:
            return f"it ended before offset {self.next_offset} for a moment"
        self.next_offset = max(self.next_offset, first)
        is_behind = self.next_offset < end
        if not (is_behind and self._is_behind):
            self._moved_ms = now_ms
        self._is_behind = is_behind
        return ""

    def is_stuck(self, now_ms: int) -> bool:
        """Return whether the partition has had records for long of which none arrived."""
        return self._is_behind and now_ms - self._moved_ms > LONGEST_STILL_MS

    def renewed(self, now_ms: int) -> None:
        """Note that a new client of Kafka reads from here on."""
        self._moved_ms, self._is_behind = now_ms, False


class TopicIdentity:
    """The id that a topic had first. Brokers without topic ids, or without metadata of the topic, return none."""

    def __init__(self, topic_id: str = "") -> None:
        """Begin with a known id; empty if none is known yet."""
        self._id = topic_id

    def look(self, topic_id: str) -> str:
        """Compare an id with the first one; return evidence that the topic was deleted and created again."""
        if topic_id in ("", _NO_ID):
            return ""
        known, self._id = self._id or topic_id, topic_id
        return "" if known == topic_id else f"its topic id was {known}, and is {topic_id} now"


_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Zero: what librdkafka returns as the id of a topic if the broker does not have topic ids."""
