"""Marks: the last applied record of each shard, by which the coordinator recognizes that a log was replaced.

A broker that lacks records may become the leader of a partition: after an unclean election, or when a disk has lost its
last writes. Its log then ends earlier, and grows again. As soon as it is longer than before, its offsets do not show
any more that the applied records were replaced by others. Their log times show it.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, Message, TopicPartition
from msgspec import structs

from wakeroll.connection import Connection
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster
from wakeroll_pipeline.recovery.checkpoint_state import progress_of
from wakeroll_pipeline.recovery.initial_state import name_of, place_of
from wakeroll_pipeline.runtime.deciding_queries import query_of, topics_of
from wakeroll_pipeline.runtime.run_status import read_status, write_status
from wakeroll_pipeline.settings import Settings

AT_ONCE = 64
"""Number of partitions that `LogWatch` compares in one round, so that a round costs little for any number of
partitions."""
INTERVAL_S = 5.0
"""Pause between two rounds (s)."""
_ANSWER_S = 3.0
_POLL_S = 0.1


class Mark(NamedTuple):
    """A record that was applied."""

    offset: int
    at_ms: int
    """Log time of the record, epoch ms."""


Marks = Mapping[ControlPartition, Mark]


def marks_of(settings: Settings) -> Marks:
    """Return the marks of the last `run`, as far as they concern the checkpoint of its deciding query."""
    status = read_status(settings.work_folder, settings.replica)
    progress = progress_of(settings.checkpoint(query_of(settings)))
    if status is None or progress is None:
        return {}
    topics = topics_of(settings)
    return {
        place: mark
        for place, mark in marks_in(status.marks).items()
        if place[0] in topics and mark.offset < progress.next.get(place, 0)
    }


def marks_in(named: Mapping[str, tuple[int, int]]) -> Marks:
    """Return marks from the form of the shards' reports and of the status file."""
    return {place_of(name): Mark(*mark) for name, mark in named.items()}


def forget_marks(settings: Settings) -> None:
    """Delete the marks of the last `run`: the next one reads the replaced log."""
    status = read_status(settings.work_folder, settings.replica)
    if status is not None:
        write_status(settings.work_folder, structs.replace(status, marks={}), settings.replica)


def refuse_replaced(settings: Settings, marks: Marks | None = None, patience_s: float = PATIENCE_S) -> None:
    """Reject a log with other records at the offsets of those that the deciding query has applied.

    Args:
        settings: the deployment.
        marks: applied records; None: those of the last `run`.
        patience_s: how long to wait for each answer of the brokers, in seconds.

    Raises:
        InvalidUsage: a log was replaced; the message names the remedy.
        NotReachable: no broker answered.
    """
    marks = marks_of(settings) if marks is None else marks
    if places := replaced(settings.connection, marks, patience_s):
        place, *others = places
        more = f" (and {len(others)} more partitions)" if others else ""
        raise InvalidUsage(
            f"{name_of(place)}{more} no longer has the record {marks[place].offset} that the coordinator has applied: "
            "the brokers have lost records, by an unclean leader election or a lost disk, and others follow in their "
            "place; run `wakeroll restore`, which lets the next run continue, in a new era"
        )


def replaced(connection: Connection, marks: Marks, patience_s: float = PATIENCE_S) -> list[ControlPartition]:
    """Return the partitions that have another record, or none, at the offset of their mark; sorted.

    A record that Kafka has deleted by retention is not missing.

    Raises:
        NotReachable: no broker answered, or a record does not arrive in time.
    """
    if not marks:
        return []
    logs = Cluster(connection, patience_s=patience_s).all_offsets(marks)
    gone = {place for place, (_, end) in logs.items() if marks[place].offset >= end}
    asked = {place: marks[place].offset for place, (first, end) in logs.items() if first <= marks[place].offset < end}
    found = _log_times(connection, asked, patience_s)
    return sorted(gone | {place for place, at_ms in found.items() if at_ms != marks[place].at_ms})


class LogWatch:
    """Compares the marks of a running query with the log from time to time, some partitions in each round."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._turn: list[ControlPartition] = []
        self._due_s = time.monotonic() + INTERVAL_S

    def look_if_due(self, marks: Marks) -> None:
        """If a round is due, compare the marks of the next partitions. Unreachable brokers are not a finding.

        Raises:
            InvalidUsage: a log was replaced; the message names the remedy.
        """
        if time.monotonic() < self._due_s:
            return
        if not self._turn:
            self._turn = sorted(marks)
        now, self._turn = self._turn[:AT_ONCE], self._turn[AT_ONCE:]
        with suppress(NotReachable):
            refuse_replaced(self._settings, {place: marks[place] for place in now if place in marks}, _ANSWER_S)
        self._due_s = time.monotonic() + INTERVAL_S


def _log_times(
    connection: Connection, offsets: Mapping[ControlPartition, int], patience_s: float
) -> dict[ControlPartition, int]:
    """Read one record of each partition; return their log times, without those that are no longer at their offset.

    Raises:
        NotReachable: a record does not arrive in time.
    """
    left, found = set(offsets), dict[ControlPartition, int]()
    if not left:
        return found
    # Each partition sends one batch of records, however large the limit is.
    little = {"fetch.message.max.bytes": 1_024, "queued.min.messages": 1, "enable.partition.eof": True, "log_level": 0}
    consumer = connection.consumer(error_cb=lambda _: None, **little)
    deadline = time.monotonic() + patience_s
    try:
        consumer.assign([TopicPartition(*place, offset) for place, offset in offsets.items()])
        while left:
            for message in consumer.consume(len(left), _POLL_S):
                place = _place(message)
                if place not in left or _is_passing(message.error()):
                    continue
                left.discard(place)
                consumer.pause([TopicPartition(*place)])
                if message.error() is None and message.offset() == offsets[place]:
                    found[place] = message.timestamp()[1]
            if left and time.monotonic() > deadline:
                raise NotReachable(f"cannot read {name_of(min(left))} at {connection.bootstrap}")
    finally:
        consumer.close()
    return found


def _place(message: Message) -> ControlPartition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None, "a message has a topic"
    assert partition is not None, "a message has a partition"
    return topic, partition


def _is_passing(error: KafkaError | None) -> bool:
    """Return whether Kafka's client retries by itself after an error."""
    return error is not None and error.code() not in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)
