"""The broker of a world: control partitions with the log's time, an inbox, and a clock that may be wrong."""

from random import Random

import msgspec

from model.decisions import AnyDecision
from model.events import ON_EVERY_PARTITION, GroupEvent
from model.partitioner import partition_of
from model.records import Record
from tests.support.simulation.groups.group_plan import PARTITIONS

TOPIC = "wakeroll.groups"
START_MS = 1_700_000_000_000
"""Log time when a world begins."""

_encode = msgspec.json.Encoder().encode


class Broker:
    """Appends and delivers; it knows nothing of what is in a record."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self.skew_ms = 0
        """How far the log's clock is ahead of the world's."""
        self.log: list[list[Record]] = [[] for _ in range(PARTITIONS)]
        self.appended: list[list[tuple[int, GroupEvent | None]]] = [[] for _ in range(PARTITIONS)]
        """Of each record: when in world time, and what it says; None if it is no event."""
        self.dark_until_ms = 0
        self.inbox: dict[str, list[AnyDecision]] = {}
        """client_id -> all that was ever published to it."""

    def latency_ms(self) -> int:
        """Return how long a record or an answer is under way, this time."""
        return self._rng.choice((1, 2, 5, 10, 40))

    def append(self, event: GroupEvent, now_ms: int) -> None:
        """Append an event where it belongs."""
        value = _encode(event)
        if isinstance(event, ON_EVERY_PARTITION):
            for partition in range(PARTITIONS):
                self.write(partition, None, value, event, now_ms)
        else:
            key = event.group_id.encode()
            self.write(partition_of(key, PARTITIONS), key, value, event, now_ms)

    def write(self, partition: int, key: bytes | None, value: bytes, event: GroupEvent | None, now_ms: int) -> None:
        """Append any bytes."""
        records = self.log[partition]
        records.append(Record(TOPIC, partition, len(records), START_MS + now_ms + self.skew_ms, key, value))
        self.appended[partition].append((now_ms, event))

    def publish(self, client_id: str, decision: AnyDecision) -> None:
        """Put a decision into its client's inbox."""
        self.inbox.setdefault(client_id, []).append(decision)
