"""The data side: real Kafka partitions, read by `assign` alone."""

import logging

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from model.client_actions import Give
from model.decisions import Start
from model.queue import Queue
from wakeroll.connection import Connection
from wakeroll.errors import WakerollError

log = logging.getLogger("wakeroll")

RESOLVE_S = 2.0
"""How long to wait for the broker to turn a policy into an offset; after that it is tried again in the next poll."""
FETCH_WAIT_MS = 100
"""How long a broker may hold a fetch that finds nothing: what comes behind it on the same connection, a queue that is
new or the question for its start, waits as long.  Measured: with 500 a queue that comes back is read 0.4 s later."""


class Reader:
    """Reads the queues that were given, each from its start; those that stay keep their position.  For one thread."""

    def __init__(self, connection: Connection) -> None:
        self._consumer = connection.consumer(**{"fetch.wait.max.ms": FETCH_WAIT_MS})
        self._reading: dict[Queue, Give] = {}
        self._gives: dict[tuple[str | None, int | None], Give] = {}
        """The same by topic and partition: looked up for each message."""
        self._noted: set[tuple[str | None, int]] = set()

    @property
    def queues(self) -> list[Queue]:
        """What is being read, sorted."""
        return sorted(self._reading.copy())  # of a copy: another thread may ask

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to read."""
        return not self._reading

    def start(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Read these queues too; return those whose start was found, and that offset, sorted by queue.

        What is produced to a queue after this is read, also with the policy ``last``.
        """
        found = self._resolve(gives)
        if found:
            self._consumer.incremental_assign(
                [TopicPartition(give.queue.topic, give.queue.queue_id, offset) for give, offset in found]
            )
            for give, _ in found:
                self._reading[give.queue] = self._gives[give.queue.topic, give.queue.queue_id] = give
        return sorted(found, key=lambda start: start[0].queue)

    def stop_all_but(self, gives: dict[Queue, Give]) -> list[Queue]:
        """Stop reading whatever is not in `gives`; return it, sorted."""
        stopped = sorted(queue for queue, give in self._reading.items() if gives.get(queue) != give)
        if stopped:
            self._consumer.incremental_unassign([TopicPartition(queue.topic, queue.queue_id) for queue in stopped])
            for queue in stopped:
                del self._reading[queue], self._gives[queue.topic, queue.queue_id]
        return stopped

    def poll(self, timeout: float) -> tuple[Give, Message] | None:
        """Return the next message and why it is read; wait at most `timeout` seconds.

        Raises:
            WakerollError: Kafka's client is broken for good.
        """
        message = self._consumer.poll(timeout)
        if message is None:
            return None
        give = self._gives.get((message.topic(), message.partition()))
        error = message.error()
        if error is not None:
            self._handle(error, message.topic(), give)
            return None
        return None if give is None else (give, message)

    def close(self) -> None:
        """Stop reading everything."""
        self._reading.clear()
        self._gives.clear()
        self._consumer.close()

    def _resolve(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Turn each start into an offset; leave out what the broker does not tell now."""
        found = [(give, give.start.offset) for give in gives if give.start.offset is not None]
        asked = {give.queue: give for give in gives if give.start.offset is None}
        wanted = {queue: _as_time(give.start) for queue, give in asked.items()}
        while wanted:
            answers = self._offsets(wanted)
            found += [(asked[queue], offset) for queue, offset in answers.items() if offset >= 0]
            # A time after the last message is answered by "the end", and where that is must be asked again.
            wanted = {queue: offset for queue, offset in answers.items() if offset == OFFSET_END != wanted[queue]}
        return found

    def _offsets(self, wanted: dict[Queue, int]) -> dict[Queue, int]:
        """Ask for the first offset at or after a time, or for the first or last of all: one request a broker."""
        partitions = [TopicPartition(queue.topic, queue.queue_id, time) for queue, time in wanted.items()]
        try:
            answers = self._consumer.offsets_for_times(partitions, timeout=RESOLVE_S)
        except KafkaException as problem:
            self._note(problem.args[0], None)
            return {}
        for answer in answers:
            if answer.error is not None:
                self._note(answer.error, answer.topic)
        return {Queue(answer.topic, "", answer.partition): answer.offset for answer in answers if answer.error is None}

    def _handle(self, error: KafkaError, topic: str | None, give: Give | None) -> None:
        if error.fatal():
            raise WakerollError(f"Kafka's client cannot go on: {error.str()}; close this Consumer and make a new one")
        if error.code() == KafkaError._AUTO_OFFSET_RESET and give is not None:
            # Messages read twice are better than messages never read.
            queue = give.queue
            log.warning("the position in %s is gone (%s); reading it again from its first message", queue, error.str())
            self._consumer.incremental_unassign([TopicPartition(queue.topic, queue.queue_id)])
            self._consumer.incremental_assign([TopicPartition(queue.topic, queue.queue_id, OFFSET_BEGINNING)])
        else:
            self._note(error, topic)

    def _note(self, error: KafkaError, topic: str | None) -> None:
        """Say once what Kafka complains of; its client tries again by itself."""
        if (topic, error.code()) not in self._noted:
            self._noted.add((topic, error.code()))
            log.warning("Kafka says about %s: %s", topic or "its connection", error.str())


def _as_time(start: Start) -> int:
    """Return what Kafka's question for an offset by time takes; the first and the last have numbers of their own."""
    match start.policy:
        case "first":
            return OFFSET_BEGINNING
        case "timestamp":
            return start.ms or 0
        case _:
            return OFFSET_END
