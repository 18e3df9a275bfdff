"""The events that the brokers have from a moment on, as a ledger in memory, before they are in the tables."""

import re
import time
from collections.abc import Mapping
from threading import Event

from confluent_kafka import OFFSET_BEGINNING, Message

from wakeroll.connection import Connection
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import NotReachable
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.login_errors import denied, is_denied
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.rows import DECISIONS, OFFSETS
from wakeroll_pipeline.kafka.rights_check import require_rights
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.memory_ledger import MemoryLedger
from wakeroll_pipeline.operators.ledger_rows import NOWHERE, KafkaRecord, Positions, offset_rows, read_decisions

PATIENCE_S = 15.0
"""Time without a record after which the first reading fails (s)."""
_SKEW_MS = 60_000
"""A decision is published after its log time; the clocks of two brokers differ by less than this (ms)."""
_LOOK_S = 10.0
"""Interval of the queries of the number of partitions (s)."""
_SLICE_S = 0.2
_AT_ONCE = 2_000

_is_event = re.compile(rb'"kind":"(?:membership|rebalance|handover|rejected|fenced)"|"reset_by":"').search
"""Matches the decisions that are events. Most decisions are commits and assignments, which are not events."""


class PublishedLedger:
    """Reads the decisions topic from a moment on, and continues as long as `read` is called. For one thread."""

    def __init__(self, connection: Connection, from_ms: int) -> None:
        """Find the topic, and the offsets to begin with.

        Args:
            connection: the brokers.
            from_ms: log time of the first events to read (epoch ms).

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
            LoginFailed, AccessDenied: the brokers reject the login, or deny a right.
            NotReachable: no broker answered, or there is no such topic.
        """
        require_rights(connection, ["viewer"])
        self._topic = connection.topics.decisions
        self._cluster = Cluster(connection)
        self._newest: Positions = {}
        """Partition and shard -> place of the newest decision: delivery is at least once."""
        self._cut: dict[int, int] = {}
        """Partition whose oldest records are deleted -> publication of its first one (epoch ms); 0: not read yet."""
        self.ledger = MemoryLedger()
        places = [(self._topic, number) for number in range(self._count())]
        offsets = self._cluster.all_offsets(places)
        since = self._cluster.since(dict.fromkeys(places, max(from_ms - _SKEW_MS, 0)))
        begins = {place: max(first, since.get(place, first)) for place, (first, _) in offsets.items()}
        for place, (first, _) in offsets.items():
            if begins[place] == first > 0:
                self._cut[place[1]] = 0
        self._ends = {place: end for place, (_, end) in offsets.items()}
        quiet = {"log_level": 0, "error_cb": lambda _: None, "auto.offset.reset": "earliest"}
        self._reader = LogReader(lambda: connection.consumer(**quiet), TopicWatch(connection))
        self._reader.begin(begins)
        self._looked_s = time.monotonic()

    def read_to_the_end(self, stop: Event) -> None:
        """Read up to the end that the topic had at the beginning, or until the stop.

        Raises:
            AccessDenied: the principal may not read the decisions.
            NotReachable: no record arrives in time, although the end is not reached.
        """
        received_s, positions = time.monotonic(), self._reader.positions()
        while not stop.is_set() and not _reaches(positions, self._ends):
            self.read(_SLICE_S)
            if positions != (positions := self._reader.positions()):
                received_s = time.monotonic()
            elif time.monotonic() - received_s > PATIENCE_S:
                raise NotReachable(f"cannot read {self._topic} for {PATIENCE_S:.0f} s; no record was received")

    def read(self, timeout: float) -> bool:
        """Read the available records; wait at most `timeout` seconds for the first one.

        Returns:
            Whether there are new events.

        Raises:
            AccessDenied: the principal may not read the decisions.
            NotReachable: no broker answers. The next call tries again.
        """
        self._look()
        try:
            messages = self._reader.take(_AT_ONCE, timeout)
        except LogReplaced:  # the decisions of the present log have an order of their own
            self._newest.clear()
            self._reader.renew(dict.fromkeys(self._ends, OFFSET_BEGINNING))
            return False
        new = []
        for one in read_decisions(filter(None, map(self._record_of, messages))):
            if one.position > self._newest.get(one.stream, NOWHERE):
                self._newest[one.stream] = one.position
                new.append(one)
        self.ledger.append(DECISIONS, [one.row for one in new])
        self.ledger.append(OFFSETS, [one.row for one in offset_rows(new)])
        return bool(new)

    def forget(self, before_ms: int) -> None:
        """Free the memory of the events before a log time (epoch ms)."""
        self.ledger.forget(DECISIONS, before_ms)
        self.ledger.forget(OFFSETS, before_ms)

    def missing(self, from_ms: int) -> list[str]:
        """Return phrases about the decisions since a log time (epoch ms) that may be deleted already."""
        return [
            f"decisions of {self._topic}-{number} before {EpochMs(first_ms)}: the brokers have deleted them"
            for number, first_ms in sorted(self._cut.items())
            if first_ms > from_ms
        ]

    def close(self) -> None:
        """Stop reading, and free the memory."""
        self._reader.close()
        self.ledger.close()

    def _record_of(self, message: Message) -> KafkaRecord | None:
        """Return the record of an event; None if the message is not an event.

        Raises:
            AccessDenied: the principal may not read the decisions.
        """
        if (error := message.error()) is not None:
            if is_denied(error):
                raise denied(self._topic, "Read")
            return None
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None, "a message without an error has a partition"
        assert offset is not None, "a message without an error has an offset"
        at_ms = message.timestamp()[1]
        if self._cut.get(partition) == 0:
            self._cut[partition] = at_ms
        if value is None or not _is_event(value):
            return None
        return KafkaRecord(self._topic, partition, offset, at_ms, None, value)

    def _look(self) -> None:
        """Begin to read new partitions, from their starts."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        added = [(self._topic, number) for number in range(len(self._ends), self._count())]
        if added:
            self._ends |= dict.fromkeys(added, 0)
            self._reader.begin({**self._reader.positions(), **dict.fromkeys(added, 0)})

    def _count(self) -> int:
        """Return the number of partitions of the topic.

        Raises:
            NotReachable: no broker answered, or there is no such topic.
        """
        return len(self._cluster.existing([self._topic])[self._topic])


def _reaches(positions: Mapping[ControlPartition, int], ends: Mapping[ControlPartition, int]) -> bool:
    return all(positions.get(place, 0) >= end for place, end in ends.items())
