"""The inbox of one client: the partition of the inbox topic with the coordinator's decisions for its client_id."""

import logging

import msgspec
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from model.decisions import Assignment, Fenced, Rejected, Wake
from model.partitioner import partition_of
from model.records import UNREADABLE
from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable
from wakeroll.inbox_lag import Hearing
from wakeroll.monotonic_clock import now_ms
from wakeroll.partition_offsets import ends_of

log = logging.getLogger("wakeroll")

LOOK_MS = 5_000
"""How often the end offset of the partition is queried (ms)."""
LOOK_TIMEOUT_S = 0.5
BATCH = 500
"""Records taken at once; a partition holds the decisions for many clients."""

ToAClient = Assignment | Fenced | Rejected | Wake
_decoder: msgspec.json.Decoder[ToAClient] = msgspec.json.Decoder(ToAClient)


class Inbox:
    """A reader of the decisions for one client, from now on. For one thread."""

    def __init__(self, connection: Connection, client_id: str, partitions: int, timeout: float) -> None:
        """Find the end of the client's partition; call this before its first heartbeat.

        Args:
            connection: the broker.
            client_id: the client.
            partitions: number of partitions of the inbox topic.
            timeout: seconds to wait for the broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings of the connection.
            NotReachable: the broker does not return the end offset.
        """
        self._key = client_id.encode()
        self._topic, self._partition = connection.topics.inbox, partition_of(self._key, partitions)
        self._consumer = connection.consumer()
        try:
            end = ends_of(self._consumer, TopicPartition(self._topic, self._partition), timeout)[1]
            self._hearing = Hearing(end, now_ms())
            self._look_due_ms = now_ms() + LOOK_MS
            self._consumer.assign([TopicPartition(self._topic, self._partition, end)])
        except KafkaException as problem:
            self._consumer.close()
            why = problem.args[0].str()
            raise NotReachable(
                f"cannot read the end offset of {connection.topics.inbox} at {connection.bootstrap}: {why}"
            ) from None

    def poll(self, timeout: float) -> list[ToAClient]:
        """Return new decisions for this client, in order; wait at most `timeout` seconds for the first one."""
        messages = take(self._consumer, BATCH, timeout)
        return [decision for message in messages if (decision := self._read(message)) is not None]

    def is_deaf(self, session_timeout_ms: int) -> bool:
        """Return whether the end was not reached for longer than a session (ms). Query the end every `LOOK_MS`."""
        now = now_ms()
        if now >= self._look_due_ms:
            self._look_due_ms = now + LOOK_MS
            try:
                first, end = ends_of(self._consumer, TopicPartition(self._topic, self._partition), LOOK_TIMEOUT_S)
                self._hearing.look(end, now_ms(), first)
            except KafkaException as problem:
                log.debug("cannot read the end offset of %s-%s: %s", self._topic, self._partition, problem)
                self._hearing.look(None, now_ms())
        return self._hearing.is_deaf(now_ms(), session_timeout_ms)

    def close(self) -> None:
        """Stop reading."""
        self._consumer.close()

    def _read(self, message: Message) -> ToAClient | None:
        """Decode a record for this client; ignore records of unknown formats: they are for other versions."""
        error = message.error()
        if error is not None:
            self._recover(error)
            return None
        self._hearing.next_offset = (message.offset() or 0) + 1
        if message.key() != self._key:
            return None
        try:
            return _decoder.decode(message.value() or b"")
        except UNREADABLE as problem:
            log.debug("ignoring a record at %s-%s@%s: %s", self._topic, self._partition, message.offset(), problem)
            return None

    def _recover(self, error: KafkaError) -> None:
        """Start over if the offset no longer exists (a day offline, a new topic); the client skips known seqs."""
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._consumer.assign([TopicPartition(self._topic, self._partition, OFFSET_BEGINNING)])
        else:
            log.debug("reading %s-%s: %s", self._topic, self._partition, error)
