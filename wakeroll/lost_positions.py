"""Where to continue in queues whose log has lost the reader's position: its first or its last messages are gone.

These queries have a Kafka client of their own, like those of `start_offsets`. Its `auto.offset.reset` is not ``error``,
so Kafka's client moves it to the point where the present log diverges from the log that was read.
"""

import time
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.partition_offsets import Positions
from wakeroll_model.queue import Queue

ANSWER_S = 2.0
"""How long to wait for the answers (s); queues without an answer are queried again later."""
SLICE_S = 0.05
FETCH_KIB = 64
"""How much to fetch of a queue (KiB): only the offset of the first message is needed."""
RECONNECT_MS = 40
"""Value of `reconnect.backoff.ms` for this short-lived client: its first answer takes 25 ms, see
`wakeroll.connection`."""
MOST_RECONNECT_MS = 10_000
MOST_AT_ONCE = 1_000
"""Maximum number of messages and errors that are taken from Kafka's client at once."""


class Position(NamedTuple):
    """How far a queue was read."""

    offset: int
    """Offset of the next message."""
    leader_epoch: int | None
    """Leader epoch of the message before it; None if not known."""


class Place(NamedTuple):
    """Where to continue in a queue."""

    offset: int
    reason: Literal["valid", "expired", "truncated"]
    """``valid``: the position exists in the log that was read; ``expired``: its message was deleted; ``truncated``: the
    log lost its tail, with the message before the position."""


class LostPositions:
    """Finds where to continue. For one thread."""

    def __init__(self, connection: Connection, note: Callable[[KafkaError, str | None], object]) -> None:
        """Prepare; `note` is called with each error of Kafka and its topic, if it has one."""
        self._connection = connection
        self._note = note
        self._smallest: dict[Queue, int] = {}
        """Smallest end offset received so far for each queue without a place; its log may grow meanwhile."""

    def find(self, positions: Mapping[Queue, Position]) -> dict[Queue, Place]:
        """Return where to continue in these queues; leave out queues without an answer of Kafka.

        If the leader epoch is known, and the brokers know leader epochs, a truncated queue continues where the present
        log diverges from the one that was read, even if it has grown past the position since. Otherwise it continues at
        the smallest end offset that was received.
        """
        client = self._connection.consumer(
            **{
                "log_level": 0,
                "auto.offset.reset": "latest",
                "enable.partition.eof": True,
                "fetch.message.max.bytes": FETCH_KIB * 1024,
                "reconnect.backoff.ms": RECONNECT_MS,
                "reconnect.backoff.max.ms": MOST_RECONNECT_MS,
            }
        )
        try:
            return self._find(client, positions)
        except KafkaException as problem:
            self._note(problem.args[0], None)
            return {}
        finally:
            client.close()

    def forget(self, queue: Queue) -> None:
        """Forget a queue that needs no answer any more."""
        self._smallest.pop(queue, None)

    def _find(self, client: Consumer, positions: Mapping[Queue, Position]) -> dict[Queue, Place]:
        deadline = time.monotonic() + ANSWER_S
        ranges = Positions(client, ANSWER_S).ranges(positions)
        found: dict[Queue, Place] = {}
        unsure: dict[Queue, int] = {}
        """Queues whose leader epochs must be compared, and the first offset of each."""
        for queue, (first, end) in ranges.items():
            position = positions[queue]
            self._smallest[queue] = min(end, self._smallest.get(queue, end))
            if position.offset < first:
                found[queue] = Place(first, "expired")
            elif position.leader_epoch is None:
                found[queue] = _place(position, self._smallest[queue], first)
            else:
                unsure[queue] = first
        for queue in self._unchanged(client, positions, unsure):
            del unsure[queue]
            found[queue] = _place(positions[queue], ranges[queue][1], ranges[queue][0])
        for queue, branch in self._branches(client, positions, unsure, deadline).items():
            found[queue] = _place(positions[queue], branch, ranges[queue][0])
        for queue in found:
            self.forget(queue)
        return found

    def _unchanged(
        self, client: Consumer, positions: Mapping[Queue, Position], queues: Mapping[Queue, int]
    ) -> list[Queue]:
        """Return the queues among these whose leader epoch has not changed since they were read."""
        if not queues:
            return []
        asked = [TopicPartition(queue.topic, queue.queue_id, OFFSET_END) for queue in queues]
        answers = client.offsets_for_times(asked, timeout=ANSWER_S)
        epochs = {Queue(at.topic, "", at.partition): at.leader_epoch for at in answers if at.error is None}
        return [queue for queue in queues if epochs.get(queue) == positions[queue].leader_epoch]

    def _branches(
        self, client: Consumer, positions: Mapping[Queue, Position], first: Mapping[Queue, int], deadline: float
    ) -> dict[Queue, int]:
        """Return where the log diverges from the one that was read, for queues in `first`; else the position or more.

        A position beyond the end must not be assigned: Kafka's client could then move to the end after it was called to
        validate the position.
        """
        if not first:
            return {}
        client.assign([TopicPartition(queue.topic, queue.queue_id, offset) for queue, offset in first.items()])
        for queue in first:
            offset, leader_epoch = positions[queue]
            at = TopicPartition(queue.topic, queue.queue_id, offset, leader_epoch=leader_epoch or 0)
            _validate(client, at, deadline)
        found: dict[Queue, int] = {}
        while len(found) < len(first) and time.monotonic() < deadline:
            for message in take(client, MOST_AT_ONCE, SLICE_S):
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    self._note(error, message.topic())
                elif (branch := message.offset()) is not None:
                    found.setdefault(Queue(message.topic() or "", "", message.partition() or 0), branch)
        return found


def _place(position: Position, end: int, first: int) -> Place:
    """Return where to continue, given the offset up to which the present log has the messages that were read."""
    if end < position.offset:
        return Place(max(end, first), "truncated")
    return Place(position.offset, "valid")


def _validate(client: Consumer, at: TopicPartition, deadline: float) -> None:
    """Let Kafka's client compare a position with the log: it does so for the target of a seek, not for an assignment.

    Raises:
        KafkaException: the client has not begun to read the partition in time.
    """
    while True:
        try:
            client.seek(at)
            return
        except KafkaException as problem:  # the assignment has not reached the partition yet
            if problem.args[0].code() != KafkaError._STATE or time.monotonic() > deadline:
                raise
        time.sleep(SLICE_S / 10)
