"""The appending of events about watched groups to the control topic, signed where an operator must sign."""

import logging
import time
from collections.abc import Iterable

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from wakeroll.connection import Connection, close_producer
from wakeroll.errors import NotReachable
from wakeroll.keys import key_to_sign, new_signer
from wakeroll.partition_offsets import ends_of
from wakeroll.topic_partitions import learn_partitions
from wakeroll_model import config
from wakeroll_model.client_keys import ClientSigner
from wakeroll_model.events import Configure, GroupEvent, Reset, Route, Tick
from wakeroll_model.partitioner import partition_of
from wakeroll_model.signing import Keys
from wakeroll_pipeline.failure_log import Trouble

log = logging.getLogger(__name__)

ENDS_S = 60.0
"""How often to query the end of a partition (s): a signature is valid for a hundred thousand offsets above it."""
COUNT_S = 60.0
"""How often to query the number of partitions (s). Until then events of moved groups are rejected, and repeated
later."""
_encode = msgspec.json.Encoder().encode


class EventLog:
    """Appends events of many groups, in order, with one signer. For one thread."""

    def __init__(self, connection: Connection, keys: Keys, timeout: float) -> None:
        """Create the clients.

        Args:
            connection: the brokers.
            keys: the last operator key among them signs.
            timeout: seconds to wait for a broker.

        Raises:
            InvalidUsage: Kafka's client rejects the settings, or there is no operator key.
        """
        self._connection = connection
        self._timeout = timeout
        self._signer = new_signer(key_to_sign(keys, "operator"))
        self._client_signers: dict[str, ClientSigner | None] = {}
        """Group -> the signer of its members' events; None if they need no signature."""
        self._topic = connection.topics.groups
        self._consumer = connection.operators_consumer()
        self._producer = self._make()
        self._is_broken = False
        self._partitions = 0
        self._counted_s = 0.0
        """When the partitions were counted last, by the monotonic clock (s)."""
        self._ends: dict[int, tuple[int, float]] = {}
        """Partition -> its end offset, and when it was queried (s)."""
        self._trouble = Trouble(log, "events about watched groups are appended again")

    def append(self, events: Iterable[GroupEvent]) -> None:
        """Append events without waiting for acknowledgements. A lost one is repeated by the next heartbeat or reset.

        Raises:
            NotReachable: no broker answers, or there is no control topic.
        """
        for event in events:
            assert not isinstance(event, Route | Tick), "only an observer appends them"
            key, value = event.group_id.encode(), _encode(event)
            home = partition_of(key, self._number())
            if isinstance(event, Configure | Reset):
                value = self._signer.sign(self._topic, home, key, value, self._end(home))
            elif signer := self._client_signer(event.group_id):
                value = signer.sign(self._topic, key, value)
            self._send(key, value, home)

    def serve(self) -> None:
        """Process delivery reports, without waiting."""
        self._producer.poll(0)

    def close(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for acknowledgements, and close the clients."""
        close_producer(self._producer, timeout)
        self._consumer.close()

    def _client_signer(self, group_id: str) -> ClientSigner | None:
        if group_id not in self._client_signers:
            self._client_signers[group_id] = self._connection.client_signer(group_id)
        return self._client_signers[group_id]

    def _send(self, key: bytes, value: bytes, partition: int) -> None:
        if self._is_broken:
            # An idempotent producer cannot recover from a fatal error.
            self._producer, self._is_broken = self._make(), False
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, on_delivery=self._delivered)
            except BufferError:  # hundreds of groups at once: wait for room
                if self._producer.poll(self._timeout) == 0:
                    raise NotReachable(f"{self._topic} accepts no records") from None
                continue
            except KafkaException as problem:
                self._note(problem.args[0])
            return

    def _number(self) -> int:
        """Return the number of partitions of the control topic, which may grow."""
        if not self._partitions or time.monotonic() - self._counted_s >= COUNT_S:
            with self._connection.answering(self._timeout):
                found = self._consumer.list_topics(self._topic, self._timeout).topics[self._topic]
            if not found.partitions:
                raise NotReachable(f"there is no topic {self._topic}; `wakeroll run` creates it")
            if self._partitions not in (0, len(found.partitions)):
                learn_partitions(self._producer, self._topic)
            self._partitions, self._counted_s = len(found.partitions), time.monotonic()
        return self._partitions

    def _end(self, partition: int) -> int:
        end, asked_s = self._ends.get(partition, (0, -ENDS_S))
        if time.monotonic() - asked_s >= ENDS_S:
            with self._connection.answering(self._timeout):
                end = ends_of(self._consumer, TopicPartition(self._topic, partition), self._timeout)[1]
            self._ends[partition] = (end, time.monotonic())
        return end

    def _make(self) -> Producer:
        return self._connection.producer(
            **{
                "message.timeout.ms": config.SESSION_TIMEOUT_MS,
                "request.timeout.ms": config.HEARTBEAT_MS,
                "message.max.bytes": config.MAX_RECORD_BYTES,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._trouble.ended()
        else:
            self._note(error)

    def _note(self, error: KafkaError) -> None:
        self._is_broken |= error.fatal() or error.code() == KafkaError._FATAL
        self._trouble.began(f"an event about a watched group is lost: {error.str()}; it is repeated later")
