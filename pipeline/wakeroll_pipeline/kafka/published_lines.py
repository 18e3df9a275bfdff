"""The topic of the newest lines of the tables' chains, which the right to write the tables is not enough to change.

The topic is compacted, and the key of a record contains the name of its process, so the last line of each process is
kept for ever. Otherwise a recorder that continues a rewritten history would replace the line that reveals this.
"""

import logging
import uuid
from collections.abc import Iterable, Sequence
from threading import Lock

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from msgspec import structs

from wakeroll.connection import Connection, close_producer
from wakeroll.errors import AccessDenied, NotReachable
from wakeroll.login_errors import is_denied
from wakeroll_model.chain import Head, Published
from wakeroll_model.events import UNREADABLE
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster

log = logging.getLogger("wakeroll.run")

_ANSWER_S = 30.0
"""Longest time for the acknowledgement of a line; a later one follows within minutes (s)."""
_LAST_S = 5.0
"""Longest wait for acknowledgements when the process ends (s)."""

_UNANSWERED = (KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)

_decode = msgspec.json.Decoder(Published).decode


class LinePublisher:
    """Publishes lines. For any thread; no method raises, and only `close` waits.

    A failure is only a warning, because the tables do not depend on these records.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        """Prepare; nothing is sent yet. The topic must exist; `name` is the name of this process, for people."""
        self._connection = connection
        self._topic = connection.topics.chain
        self._by = f"{name}-{uuid.uuid4().hex[:12]}"
        self._lock = Lock()
        self._producer: Producer | None = None
        self._acknowledged: dict[str, Head] = {}
        """Table -> its newest line that the brokers have."""
        self._trouble = Trouble(log, f"the newest lines of the chains are published in {self._topic} again")

    def publish(self, heads: Sequence[Head]) -> None:
        """Send the lines that the brokers do not have yet."""
        with self._lock:
            try:
                if self._producer is None:
                    self._producer = _producer(self._connection)
                self._producer.poll(0)
                for head in heads:
                    if self._acknowledged.get(head.table) != head:
                        self._send(self._producer, head)
            except (KafkaException, BufferError) as problem:
                self._failed(str(problem))
                self._drop(0)

    def close(self) -> None:
        """Wait a few seconds for acknowledgements, and close the client."""
        with self._lock:
            self._drop(_LAST_S)

    def _send(self, producer: Producer, head: Head) -> None:
        record = Published(table=head.table, number=head.number, line_hash=head.line_hash, by=self._by)

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._failed("no broker answered in time" if error.code() in _UNANSWERED else error.str())
                return
            self._acknowledged[head.table] = head
            self._trouble.ended()

        producer.produce(self._topic, msgspec.json.encode(record), record.key, on_delivery=delivered)

    def _failed(self, why: str) -> None:
        self._trouble.began(
            f"the newest lines of the chains are not published in {self._topic}: {why}; the tables are written anyway"
        )

    def _drop(self, timeout_s: float) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            close_producer(producer, timeout_s)


def forget_published(connection: Connection, tables: Iterable[str], reason: str, name: str) -> list[str]:
    """Publish that the lines of tables that were published before are no longer valid.

    Args:
        connection: the brokers.
        tables: the tables; those without published lines are left out.
        reason: the reason, for people.
        name: name of this process, for people.

    Returns:
        The tables whose lines are no longer valid.

    Raises:
        NotReachable: a record was not acknowledged, or the topic cannot be read.
        AccessDenied: the principal may not read the topic, or write to it.
    """
    known = {one.table for one in read_published(connection) or () if one.number}
    forgotten = [table for table in tables if table in known]
    if not forgotten:
        return []
    failures: dict[str, KafkaError] = {}
    producer, by, topic = _producer(connection), f"{name}-{uuid.uuid4().hex[:12]}", connection.topics.chain
    for table in forgotten:
        record = Published(table=table, number=0, reason=reason, by=by)

        def delivered(error: KafkaError | None, _: Message, table: str = table) -> None:
            if error is not None:
                failures[table] = error

        producer.produce(topic, msgspec.json.encode(record), record.key, on_delivery=delivered)
    left = producer.flush(_ANSWER_S + 1)
    close_producer(producer, 0)
    for error in failures.values():
        if is_denied(error):
            raise AccessDenied(f"the brokers at {connection.bootstrap} deny {connection.user} Write on {topic}")
    if failures or left:
        raise NotReachable(f"{topic} did not acknowledge a record within {_ANSWER_S:g} s")
    return forgotten


def read_published(connection: Connection, patience_s: float = PATIENCE_S) -> list[Published] | None:
    """Return the records of the topic, in the order of its log; None if there is no such topic.

    A record that cannot be decoded is left out, because no recorder has written it.

    Raises:
        AccessDenied: the principal may not read the topic.
        NotReachable: no broker answered in time.
    """
    topic, cluster = connection.topics.chain, Cluster(connection, patience_s=patience_s)
    allowed = cluster.operations([topic])[topic]
    if isinstance(allowed, KafkaError) and allowed.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
        return None
    if isinstance(allowed, KafkaError) or "READ" not in allowed:
        raise AccessDenied(
            f"the brokers at {connection.bootstrap} deny {connection.user} Read on {topic}; to fix this: wakeroll acls "
            f"auditor=PRINCIPAL --prefix {connection.topics.prefix} prints the ACLs"
        )
    place = topic, 0
    records = []
    for message in read_spans(connection, {place: Span(*cluster.all_offsets([place])[place])}):
        try:
            record = _decode(message.value() or b"")
        except UNREADABLE:
            continue
        records.append(structs.replace(record, at_ms=message.timestamp()[1]))
    return records


def _producer(connection: Connection) -> Producer:
    settings = {"message.timeout.ms": round(_ANSWER_S * 1_000), "error_cb": lambda _: None, "log_level": 0}
    # A record may be there twice. An idempotent producer without the right to write has a fatal error, which does not
    # name the topic.
    return connection.producer(**{"enable.idempotence": False, **settings})
