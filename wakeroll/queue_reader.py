"""Reading of one queue from an offset up to its current end; a fetch does this before and after its wait."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable, WakerollError
from wakeroll_model.queue import Queue

log = logging.getLogger("wakeroll")

SLICE_S = 0.5
"""How long to wait for messages before checking whether the fetch must end (s)."""
ANSWER_S = 2.0
"""How long to wait for one answer before the query is repeated (s)."""
RETRY_S = 0.1
FETCH_WAIT_MS = 10
"""How long a broker may hold a fetch that finds nothing (ms). Only a fetch behind the last message finds nothing, and
the next request on the same connection waits behind it."""


class Read(NamedTuple):
    """The messages that a read found."""

    messages: list[Message]
    next_offset: int
    """Offset behind the messages and behind Kafka's internal records: transaction markers and aborted records."""


class QueueReader:
    """Reads one queue, and later perhaps another. For one thread at a time.

    Its consumer is assigned to the queue only while there are messages to read. Otherwise librdkafka would poll Kafka
    repeatedly at the end of the queue, which long polling avoids.
    """

    def __init__(self, connection: Connection) -> None:
        """Create a reader that has read no queue yet.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
        """
        self.queue: Queue | None = None
        """Queue that was read last; None before the first read."""
        needs = {"fetch.wait.max.ms": FETCH_WAIT_MS, "enable.partition.eof": True}
        self._consumer = connection.message_consumer(**needs)
        self._next: int | None = None
        """Next offset that the assigned consumer returns; None while no queue is assigned."""
        self._end = 0
        """Lower bound of the queue's end offset."""

    def read(self, queue: Queue, offset: int, most: int, timeout: float, check: Callable[[], None]) -> Read:
        """Return at least one message if there is one, else the end offset.

        With librdkafka's default `isolation.level`, a queue ends where the first open transaction begins.

        Args:
            queue: a queue of Kafka.
            offset: where to start; if that message is already deleted, the first message of the queue.
            most: upper bound of the messages returned, from 1.
            timeout: seconds to wait for Kafka's answers; a request in progress may exceed it.
            check: called repeatedly; its exceptions end the reading.

        Raises:
            NotReachable: Kafka does not answer in time, or has no such queue.
            WakerollError: Kafka's client has failed permanently.
        """
        deadline = time.monotonic() + timeout
        if queue != self.queue:
            self._leave()
            self.queue, self._end = queue, 0
        while True:
            if offset >= self._end:
                first, self._end = self._ends(queue, deadline, check)
                offset = max(offset, first)
                if offset >= self._end:
                    self._leave()
                    return Read([], offset)
            if self._next != offset:
                self._consumer.assign([TopicPartition(queue.topic, queue.queue_id, offset)])
                self._next = offset
            read = self._take(offset, most)
            if read is not None:
                return read
            check()
            if time.monotonic() > deadline:
                raise NotReachable(f"Kafka did not return the messages of {queue} from offset {offset} to {self._end}")

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _ends(self, queue: Queue, deadline: float, check: Callable[[], None]) -> tuple[int, int]:
        """Query the first offset and the end offset: one request."""
        partition = TopicPartition(queue.topic, queue.queue_id)
        while True:
            check()
            try:
                return self._consumer.get_watermark_offsets(partition, ANSWER_S)
            except KafkaException as problem:
                error = problem.args[0]
                if time.monotonic() > deadline:
                    raise NotReachable(f"cannot read the end offset of {queue}: {error.str()}") from None
                if error.code() == KafkaError._UNKNOWN_PARTITION:
                    self._learn_partitions(queue.topic)
            self._consumer.poll(RETRY_S)

    def _learn_partitions(self, topic: str) -> None:
        """Query the partitions of a topic: Kafka's client itself learns of new ones only every five minutes."""
        try:
            self._consumer.list_topics(topic, timeout=ANSWER_S)
        except KafkaException as problem:
            self._note(problem.args[0])

    def _take(self, offset: int, most: int) -> Read | None:
        """Return received messages from `offset` on, or wait one slice for them; None if nothing arrived."""
        messages: list[Message] = []
        found = is_lost = False
        for message in take(self._consumer, most, SLICE_S):
            error, at = message.error(), message.offset()
            if error is None:
                assert at is not None, "a message without an error has an offset"
                messages.append(message)
                offset, found = at + 1, True
            elif error.code() == KafkaError._PARTITION_EOF:
                assert at is not None, "the end of a partition is an offset"
                offset, found, self._end = at, True, at
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                # Messages were deleted after the end was read, or the log lost its tail: query the end again. Kafka's
                # client does not read on by itself.
                self._end, is_lost = 0, True
            else:
                self._note(error)
        self._next = offset
        if offset >= self._end or is_lost:
            self._leave()
        return Read(messages, offset) if found else None

    def _leave(self) -> None:
        if self._next is not None:
            self._consumer.unassign()
            self._next = None

    def _note(self, error: KafkaError) -> None:
        """Let Kafka's client retry, unless its error is fatal."""
        if error.fatal():
            raise WakerollError(f"Kafka's client failed: {error.str()}; close this Consumer and create a new one")
        log.debug("reading %s: %s", self.queue, error)
