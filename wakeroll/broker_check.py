"""Check, before a client joins, that a broker answers and that it has a control plane."""

import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, TopicCollection
from confluent_kafka.admin import AdminClient, TopicDescription

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll.kafka_answers import wait_for
from wakeroll.login_errors import denied, is_denied, login_failure

log = logging.getLogger("wakeroll")

_TURN_S = 2.0
"""How long to wait for the answer to the first request (s); twice as long for each further one. A broker that was just
resumed may report a cluster without brokers; a client that received this waits for a broker until its request ends."""
_RETRY_S = 0.1
"""How long to wait before a request without an answer is repeated (s)."""


class InboxTopic(NamedTuple):
    """The topic of the inbox, as the brokers describe it."""

    partitions: int
    """Number of its partitions."""
    topic_id: str
    """Id that changes if it is deleted and created again; empty if the brokers return none."""


def look(
    connection: Connection, topics: Iterable[str], timeout: float, rights: tuple[str, str] = ("Write", "Read")
) -> InboxTopic:
    """Query the broker's topics.

    Args:
        connection: the broker.
        topics: topics that the application wants to read; a missing one is logged as a warning, because it may be
            created later.
        timeout: seconds to wait for the answer.
        rights: operations that the caller needs on the topic of group events, and on the inbox; for error messages.

    Returns:
        The topic of the inbox.

    Raises:
        InvalidUsage: Kafka's client rejects the settings of the connection.
        LoginFailed: the brokers reject the login.
        AccessDenied: the principal has no right on a topic.
        NotReachable: no broker answers in time, or the control topics do not exist.
    """
    needed = dict(zip((connection.topics.groups, connection.topics.inbox), rights, strict=True))
    wanted = list(topics)
    answers = _describe(connection, [*needed, *wanted], timeout)

    def partitions_of(topic: str, operation: str) -> int:
        """Return the number of partitions of a topic; 0 if there is no such topic. Raises: AccessDenied."""
        answer = answers[topic]
        if not isinstance(answer, KafkaError):
            return len(answer.partitions)
        if is_denied(answer):
            raise denied(topic, operation)
        return 0

    inbox = 0
    for topic, operation in needed.items():
        inbox = partitions_of(topic, operation)
        if not inbox:
            raise NotReachable(
                f"no topic {topic} at {connection.bootstrap}; is the control plane running? start it with "
                f"`wakeroll up`, or set prefix= to the prefix of its topics (now {connection.topics.prefix!r})"
            )
    for topic in wanted:
        if not partitions_of(topic, "Read"):
            log.warning("no topic %s at %s yet; waiting for it to be created", topic, connection.bootstrap)
    described = answers[connection.topics.inbox]
    return InboxTopic(inbox, "" if isinstance(described, KafkaError) else str(described.topic_id))


def _describe(
    connection: Connection, topics: Iterable[str], timeout: float
) -> Mapping[str, TopicDescription | KafkaError]:
    """Return the brokers' answers about topics; stop early if the login fails, which Kafka's client retries for ever.

    An admin client sends the request, because the first one of a consumer of `Connection` would take half a second (see
    `connection.RECONNECT_MS`). Neither client creates a topic.
    """
    deadline = time.monotonic() + timeout
    reasons: list[KafkaError] = []
    admin = connection.admin(error_cb=reasons.append, log_level=0)
    asked = TopicCollection(list(dict.fromkeys(topics)))
    turn_s = _TURN_S
    while True:
        turn_s, wait_s = 2 * turn_s, min(max(deadline - time.monotonic(), 0.1), turn_s)
        futures: dict[str, Future[TopicDescription]] = admin.describe_topics(asked, request_timeout=wait_s)
        answers = wait_for(futures, wait_s, partial(_raise_if_rejected, connection, admin, reasons))
        _raise_if_rejected(connection, admin, reasons)
        # Errors that Kafka's client reports, and no broker.
        lost = [one for one in (answers or {}).values() if isinstance(one, KafkaError) and one.code() < 0]
        if answers is not None and not lost:
            return answers
        if time.monotonic() >= deadline:
            said = [error.str() for error in (*reasons, *lost)]  # the first one is more specific than "timed out"
            raise NotReachable(
                f"no Kafka broker answered at {connection.bootstrap} within {timeout:g} s"
                f"{f' ({said[0]})' if said else ''}; is it running?"
            )
        time.sleep(_RETRY_S)


def _raise_if_rejected(connection: Connection, admin: AdminClient, reasons: list[KafkaError]) -> None:
    """Read the errors that Kafka's client reported into `reasons`; raise LoginFailed if one is about the login."""
    admin.poll(0)  # calls error_cb
    for reason in reasons:
        if failure := login_failure(connection.bootstrap, connection.config, reason):
            raise failure
