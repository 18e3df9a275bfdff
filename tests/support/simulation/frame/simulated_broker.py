"""The broker of a world: the partitions of one control topic with the log's time, and a clock that may be wrong."""

from random import Random

from tests.support.control_log import START_MS, encode_event
from wakeroll_model.decisions import Cause
from wakeroll_model.events import ON_EVERY_PARTITION, AnyEvent
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record, entity_of


class Broker:
    """Appends and stamps records; it does not read them."""

    def __init__(self, rng: Random, topic: str, partitions: int) -> None:
        self._rng = rng
        self.topic = topic
        self.skew_ms = 0
        """How far the log's clock is ahead of the world's."""
        self.dark_until_ms = 0
        """Until this time of the world, nothing is appended."""
        self.log: list[list[Record]] = [[] for _ in range(partitions)]
        self.appended: list[list[tuple[int, AnyEvent | None]]] = [[] for _ in range(partitions)]
        """For each record: the time of the world, and the event; None if it is no event or must be rejected."""

    def latency_ms(self) -> int:
        """Return how long a record or an answer is under way, this time."""
        return self._rng.choice((1, 2, 5, 10, 40))

    def log_ms(self, now_ms: int) -> int:
        """Return the time of the log at a time of the world."""
        return START_MS + now_ms + self.skew_ms

    def append(self, event: AnyEvent, now_ms: int, *, is_refused: bool = False) -> list[Record]:
        """Append an event where it belongs; return its records.

        Args:
            event: the event.
            now_ms: the time of the world.
            is_refused: the event must be rejected.
        """
        value, known = encode_event(event), None if is_refused else event
        if isinstance(event, ON_EVERY_PARTITION):
            return [self.write(partition, None, value, known, now_ms) for partition in range(len(self.log))]
        key = entity_of(event).encode()
        return [self.write(partition_of(key, len(self.log)), key, value, known, now_ms)]

    def write(
        self, partition: int, key: bytes | None, value: bytes | None, event: AnyEvent | None, now_ms: int
    ) -> Record:
        """Append any bytes; return the record."""
        records = self.log[partition]
        record = Record(self.topic, partition, len(records), self.log_ms(now_ms), key, value)
        records.append(record)
        self.appended[partition].append((now_ms, event))
        return record

    def events(self, partition: int) -> list[AnyEvent | None]:
        """Return the event of each record of a partition; None if it is no event or must be rejected."""
        return [event for _, event in self.appended[partition]]

    def appended_ms(self, cause: Cause) -> int:
        """Return the time of the world at which a decision's cause was appended."""
        at_ms, _ = self.appended[cause.partition][cause.offset]
        return at_ms
