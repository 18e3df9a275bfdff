"""Messages of one queue from an offset on, as far as they are there: what a fetch reads before and after it waits."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from model.queue import Queue
from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable, WakerollError

log = logging.getLogger("wakeroll")

SLICE_S = 0.5
"""How long to wait for messages before looking whether the fetch is to end."""
ANSWER_S = 2.0
"""How long to wait for one answer; after that it is asked again."""
RETRY_S = 0.1
FETCH_WAIT_MS = 10
"""How long a broker may hold a fetch that finds nothing: only one that comes after the last message does, and what is
asked next on the same connection waits behind it."""


class Read(NamedTuple):
    """What was there."""

    messages: list[Message]
    next_offset: int
    """Behind the messages, and behind what Kafka keeps to itself: markers of transactions, and what they aborted."""


class QueueReader:
    """Reads a queue, then perhaps another.  For one thread at a time.

    It is assigned to the queue only while there is more to read: behind the last message Kafka must not be asked again
    and again, for that is what long polling spares.
    """

    def __init__(self, connection: Connection) -> None:
        self.queue: Queue | None = None
        """That was read last."""
        self._consumer = connection.consumer(**{"fetch.wait.max.ms": FETCH_WAIT_MS, "enable.partition.eof": True})
        self._next: int | None = None
        """What the assigned consumer returns next; None: it is not assigned."""
        self._end = 0
        """How far the queue reaches at least."""

    def read(self, queue: Queue, offset: int, most: int, timeout: float, check: Callable[[], None]) -> Read:
        """Return at least one message if there is one, or how far there is none.

        With librdkafka's default `isolation.level` a queue ends where the first open transaction begins.

        Args:
            queue: one of Kafka's.
            offset: where to begin; below the first message that is still there, that one counts.
            most: messages to return, from 1.
            timeout: seconds, at least, to wait for Kafka's answers.
            check: called now and then; what it raises ends the reading.

        Raises:
            NotReachable: Kafka does not answer in time, or has no such queue.
            WakerollError: Kafka's client is broken for good.
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
                raise NotReachable(f"Kafka does not give the messages of {queue} from offset {offset} to {self._end}")

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _ends(self, queue: Queue, deadline: float, check: Callable[[], None]) -> tuple[int, int]:
        """Ask for the first offset and for that of the next message: one request."""
        partition = TopicPartition(queue.topic, queue.queue_id)
        while True:
            check()
            try:
                return self._consumer.get_watermark_offsets(partition, ANSWER_S)
            except KafkaException as problem:
                error = problem.args[0]
                if time.monotonic() > deadline:
                    raise NotReachable(f"Kafka does not tell how far {queue} reaches: {error.str()}") from None
            self._consumer.poll(RETRY_S)

    def _take(self, offset: int, most: int) -> Read | None:
        """Take what has come from `offset` on, or wait a slice for it; None: nothing is known yet, look again."""
        messages: list[Message] = []
        found = False
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
                self._end = 0  # deleted or truncated since it was asked how far the queue reaches: ask again
            else:
                self._note(error)
        self._next = offset
        if offset >= self._end:
            self._leave()
        return Read(messages, offset) if found else None

    def _leave(self) -> None:
        if self._next is not None:
            self._consumer.unassign()
            self._next = None

    def _note(self, error: KafkaError) -> None:
        """Let Kafka's client try again, unless it never will."""
        if error.fatal():
            raise WakerollError(f"Kafka's client cannot go on: {error.str()}; close this Consumer and make a new one")
        log.debug("reading %s: %s", self.queue, error)
