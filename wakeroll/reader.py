"""The data side of the consumer: Kafka partitions, read with `assign` and without Kafka's own groups."""

import logging
from collections.abc import Iterable
from itertools import groupby

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from model.client_actions import Give
from model.decisions import Start
from model.queue import Queue
from wakeroll.connection import Connection, take
from wakeroll.errors import WakerollError

log = logging.getLogger("wakeroll")

RESOLVE_S = 2.0
"""How long to wait until the broker resolves a policy to an offset (s); the next poll retries."""
FETCH_WAIT_MS = 100
"""How long a broker may hold a fetch that finds nothing (ms). Requests behind it on the same connection, such as the
fetch of a new queue or the query of its start, wait as long. Measured: with 500 ms, a reassigned queue is read 0.4 s
later."""


class Reader:
    """Reads the assigned queues, each from its start. Queues that stay keep their position. For one thread."""

    def __init__(self, connection: Connection) -> None:
        """Create a reader without queues.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
        """
        self._consumer = connection.consumer(**{"fetch.wait.max.ms": FETCH_WAIT_MS})
        self._reading: dict[Queue, Give] = {}
        self._gives: dict[tuple[str | None, int | None], Give] = {}
        """Assignments by topic and partition, looked up for each message."""
        self._paused: set[Queue] = set()
        self._noted: set[tuple[str | None, int]] = set()

    @property
    def queues(self) -> list[Queue]:
        """Queues that are being read, sorted."""
        return sorted(self._reading.copy())  # a copy: another thread may call this

    @property
    def is_idle(self) -> bool:
        """Whether there is no queue to read."""
        return not self._reading

    def start(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Read these queues too; return those whose start offset was found, with that offset, sorted by queue.

        Messages produced after this call are read, also with the policy ``last``.
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
        """Stop reading all queues that are not in `gives`; return them, sorted."""
        stopped = sorted(queue for queue, give in self._reading.items() if gives.get(queue) != give)
        if stopped:
            # Kafka's client keeps a partition paused when it is unassigned, and then does not read it if it comes back.
            self.resume([queue for queue in stopped if queue in self._paused])
            self._consumer.incremental_unassign(_partitions(stopped))
            for queue in stopped:
                del self._reading[queue], self._gives[queue.topic, queue.queue_id]
        return stopped

    def poll(self, timeout: float) -> tuple[Give, Message] | None:
        """Return the next message and the assignment of its queue; wait at most `timeout` seconds.

        Raises:
            WakerollError: Kafka's client has failed permanently.
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

    def take(self, most: int, timeout: float) -> list[tuple[Give, list[Message]]]:
        """Return the next messages by queue, each with its assignment; wait at most `timeout` seconds for the first.

        A queue may come up several times.

        Raises:
            WakerollError: Kafka's client has failed permanently.
        """
        messages = take(self._consumer, most, timeout)
        if any(map(Message.error, messages)):
            for message in messages:
                if (error := message.error()) is not None:
                    self._handle(error, message.topic(), self._gives.get((message.topic(), message.partition())))
            messages = [message for message in messages if message.error() is None]
        runs = []
        for partition, some in groupby(messages, Message.partition):
            for topic, run in groupby(some, Message.topic):
                give = self._gives.get((topic, partition))
                if give is not None:
                    runs.append((give, list(run)))
        return runs

    def pause(self, queues: list[Queue]) -> None:
        """Read no further messages of these queues, until `resume`."""
        if queues:
            self._consumer.pause(_partitions(queues))
            self._paused.update(queues)

    def resume(self, queues: list[Queue]) -> None:
        """Read these paused queues on."""
        if queues:
            self._consumer.resume(_partitions(queues))
            self._paused.difference_update(queues)

    def set_back(self, positions: Iterable[tuple[Give, int]]) -> None:
        """Read these assigned queues from these offsets on."""
        offsets = [
            TopicPartition(give.queue.topic, give.queue.queue_id, offset)
            for give, offset in positions
            if self._reading.get(give.queue) == give
        ]
        if offsets:
            self._move(offsets)

    def close(self) -> None:
        """Stop reading everything."""
        self._reading.clear()
        self._gives.clear()
        self._consumer.close()

    def _resolve(self, gives: list[Give]) -> list[tuple[Give, int]]:
        """Resolve each start to an offset; leave out queues for which the broker does not return one now."""
        found = [(give, give.start.offset) for give in gives if give.start.offset is not None]
        asked = {give.queue: give for give in gives if give.start.offset is None}
        wanted = {queue: _as_time(give.start) for queue, give in asked.items()}
        while wanted:
            answers = self._offsets(wanted)
            found += [(asked[queue], offset) for queue, offset in answers.items() if offset >= 0]
            # For a time after the last message Kafka returns "the end"; a second query resolves the end to an offset.
            wanted = {queue: offset for queue, offset in answers.items() if offset == OFFSET_END != wanted[queue]}
        return found

    def _offsets(self, wanted: dict[Queue, int]) -> dict[Queue, int]:
        """Query the first offset at or after a time, or the first or last offset: one request per broker."""
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
            raise WakerollError(f"Kafka's client failed: {error.str()}; close this Consumer and create a new one")
        if error.code() == KafkaError._AUTO_OFFSET_RESET and give is not None:
            # Reading messages twice is better than losing them.
            queue = give.queue
            log.warning("the offset in %s no longer exists (%s); reading from the first message", queue, error.str())
            self._move([TopicPartition(queue.topic, queue.queue_id, OFFSET_BEGINNING)])
        else:
            self._note(error, topic)

    def _move(self, offsets: list[TopicPartition]) -> None:
        """Read these partitions from these offsets on."""
        self._consumer.incremental_unassign(offsets)
        self._consumer.incremental_assign(offsets)

    def _note(self, error: KafkaError, topic: str | None) -> None:
        """Log each kind of Kafka error once per topic; Kafka's client retries by itself."""
        if (topic, error.code()) not in self._noted:
            self._noted.add((topic, error.code()))
            log.warning("Kafka reports an error for %s: %s", topic or "its connection", error.str())


def _partitions(queues: Iterable[Queue]) -> list[TopicPartition]:
    return [TopicPartition(queue.topic, queue.queue_id) for queue in queues]


def _as_time(start: Start) -> int:
    """Return the argument of Kafka's query for an offset by time; first and last have special values."""
    match start.policy:
        case "first":
            return OFFSET_BEGINNING
        case "timestamp":
            return start.ms or 0
        case _:
            return OFFSET_END
