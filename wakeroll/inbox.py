"""The inbox of one client: the partition of the inbox topic with the coordinator's decisions for its client_id."""

import logging

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.inbox_lag import Hearing
from wakeroll.log_reader import LogReader, LogReplaced, TopicWatch
from wakeroll.monotonic_clock import now_ms
from wakeroll.partition_offsets import ends_of
from wakeroll_model.decisions import Assignment, Fenced, Membership, Rejected, Wake
from wakeroll_model.events import UNREADABLE
from wakeroll_model.partitioner import partition_of

log = logging.getLogger("wakeroll")

LOOK_MS = 5_000
"""How often the end offset of the partition is queried (ms)."""
LOOK_TIMEOUT_S = 0.5
BATCH = 500
"""Maximum number of records taken at once; a partition has the decisions for many clients."""

ToAClient = Assignment | Fenced | Membership | Rejected | Wake
_decoder: msgspec.json.Decoder[ToAClient] = msgspec.json.Decoder(ToAClient)


class Inbox:
    """A reader of the decisions for one client, from now on. For one thread."""

    def __init__(
        self, connection: Connection, client_id: str, partitions: int, timeout: float, topic_id: str = ""
    ) -> None:
        """Find the end of the client's partition; call this before its first heartbeat.

        Args:
            connection: the broker.
            client_id: the client.
            partitions: number of partitions of the inbox topic.
            timeout: seconds to wait for the broker.
            topic_id: id of the inbox topic; empty if the brokers have none.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
            NotReachable: the broker does not return the end offset.
        """
        self._key = client_id.encode()
        self._topic, self._partition = connection.topics.inbox, partition_of(self._key, partitions)
        # A query of the topic's id costs a client of Kafka with its threads, so it needs a reason.
        self._watch = TopicWatch(connection, is_regular=False)
        self._reader = LogReader(connection.consumer, self._watch)
        self._is_replaced = False
        try:
            end = ends_of(self._reader.consumer, TopicPartition(self._topic, self._partition), timeout)[1]
        except KafkaException as problem:
            self._reader.close()
            why = problem.args[0].str()
            raise NotReachable(
                f"cannot read the end offset of {connection.topics.inbox} at {connection.bootstrap}: {why}"
            ) from None
        self._hearing = Hearing(end, now_ms())
        self._look_due_ms = now_ms() + LOOK_MS
        self._has_read = False
        """Whether a record was read since the last query of the end offset."""
        self._reader.begin({(self._topic, self._partition): end})
        self._reader.identify(self._topic, topic_id)

    def poll(self, timeout: float) -> list[ToAClient]:
        """Return new decisions for this client, in order; wait at most `timeout` seconds for the first one."""
        try:
            messages = self._reader.take(BATCH, timeout)
        except LogReplaced as problem:
            self._start_over(problem)
            return []
        return [decision for message in messages if (decision := self._read(message)) is not None]

    def is_deaf(self, session_timeout_ms: int) -> bool:
        """Return whether reading lags behind the end for longer than a session (ms). Query the end every `LOOK_MS`.

        After an outage, the end is queried as soon as records arrive again. Otherwise the client would drop the queues
        of each new assignment, and rejoin, until the next query.
        """
        now = now_ms()
        if now >= self._look_due_ms or (self._has_read and self._hearing.is_deaf(now, session_timeout_ms)):
            self._look_due_ms, self._has_read = now + LOOK_MS, False
            try:
                self._look()
            except LogReplaced as problem:
                self._start_over(problem)
        return self._hearing.is_deaf(now_ms(), session_timeout_ms)

    def was_replaced(self) -> bool:
        """Return whether the partition has had another log since the last call; then it is read from its start.

        Decisions for the client may be lost, and the numbers of the coordinator's decisions may begin at 1 again.
        """
        was, self._is_replaced = self._is_replaced, False
        return was

    def suspect(self) -> None:
        """Query whether the topic still has the id that it had at the start; `was_replaced` returns the result."""
        self._watch.hurry()

    def close(self) -> None:
        """Stop reading."""
        self._reader.close()

    def _look(self) -> None:
        try:
            first, end = ends_of(self._reader.consumer, TopicPartition(self._topic, self._partition), LOOK_TIMEOUT_S)
        except KafkaException as problem:
            log.debug("cannot read the end offset of %s-%s: %s", self._topic, self._partition, problem)
            self._hearing.look(None, now_ms())
            return
        self._reader.look((self._topic, self._partition), first, end)
        self._hearing.look(end, now_ms(), first)

    def _start_over(self, problem: LogReplaced) -> None:
        """Read the present log from its start, to find the order of its decisions."""
        log.warning("%s; reading it from its start", problem)
        self._reader.renew({(self._topic, self._partition): OFFSET_BEGINNING})
        self._hearing.begin(0)
        self._is_replaced = True

    def _read(self, message: Message) -> ToAClient | None:
        """Decode a record for this client; ignore records of unknown formats: they are for other versions."""
        error = message.error()
        if error is not None:
            log.debug("reading %s-%s: %s", self._topic, self._partition, error)
            return None
        self._hearing.next_offset, self._has_read = (message.offset() or 0) + 1, True
        if message.key() != self._key:
            return None
        try:
            return _decoder.decode(message.value() or b"")
        except UNREADABLE as problem:
            log.debug("ignoring a record at %s-%s@%s: %s", self._topic, self._partition, message.offset(), problem)
            return None
