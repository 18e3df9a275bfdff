"""Check, before a client joins, that a broker answers and that it has a control plane."""

import logging
import time
from collections.abc import Iterable

from confluent_kafka import Consumer, KafkaError, KafkaException
from confluent_kafka.admin import TopicMetadata

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.login_errors import denied, is_denied, login_failure

log = logging.getLogger("wakeroll")

_FIRST_S = 1.0
"""How long the first query waits before the errors that Kafka's client reported are read (s); the next ones wait twice
as long each, because a busy broker may be slow."""


def look(
    connection: Connection, topics: Iterable[str], timeout: float, rights: tuple[str, str] = ("Write", "Read")
) -> int:
    """Query the broker's topics.

    Args:
        connection: the broker.
        topics: topics that the application wants to read; a missing one is logged as a warning, because it may be
            created later.
        timeout: seconds for all queries together.
        rights: operations that the caller needs on the topic of groups, and on the inbox; for error messages.

    Returns:
        The number of partitions of the inbox.

    Raises:
        InvalidUsage: Kafka's client rejects the settings of the connection.
        LoginFailed: the brokers reject the login.
        AccessDenied: the principal has no right on a topic.
        NotReachable: no broker answers in time, or the control topics do not exist.
    """
    deadline = time.monotonic() + timeout
    reasons: list[KafkaError] = []
    # Metadata requests of a consumer, unlike those of a producer, never create a topic.
    consumer = connection.consumer(error_cb=reasons.append, log_level=0)
    try:

        def partitions_of(topic: str, operation: str) -> int:
            """Return the number of partitions; 0 if there is no such topic. Raises: AccessDenied."""
            found = _metadata(connection, consumer, topic, deadline, reasons)
            if is_denied(found.error):
                raise denied(topic, operation)
            return 0 if found.error is not None else len(found.partitions)

        inbox = 0
        for topic, operation in zip((connection.topics.groups, connection.topics.inbox), rights, strict=True):
            inbox = partitions_of(topic, operation)
            if not inbox:
                raise NotReachable(
                    f"no topic {topic} at {connection.bootstrap}; is the control plane running? start it with "
                    f"`wakeroll up`, or set prefix= to the prefix of its topics (now {connection.topics.prefix!r})"
                )
        for topic in topics:
            if not partitions_of(topic, "Read"):
                log.warning("no topic %s at %s yet; waiting for it to be created", topic, connection.bootstrap)
        return inbox
    except KafkaException as problem:
        reason = (reasons or [problem.args[0]])[0].str()  # the first error is more specific than "timed out"
        raise NotReachable(
            f"no Kafka broker answered at {connection.bootstrap} within {timeout:g} s ({reason}); is it running?"
        ) from None
    finally:
        consumer.close()


def _metadata(
    connection: Connection, consumer: Consumer, topic: str, deadline: float, reasons: list[KafkaError]
) -> TopicMetadata:
    """Query a topic until the deadline; stop early if the login fails, which Kafka's client would try for ever."""
    patience_s = _FIRST_S
    while True:
        left_s = max(deadline - time.monotonic(), 0.1)
        try:
            found: TopicMetadata = consumer.list_topics(topic, min(left_s, patience_s)).topics[topic]
            return found
        except KafkaException:
            consumer.poll(0)  # calls error_cb
            for reason in reasons:
                if failure := login_failure(connection.bootstrap, connection.config, reason):
                    raise failure from None
            if time.monotonic() >= deadline:
                raise
            patience_s *= 2
