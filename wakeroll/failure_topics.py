"""The topics for messages whose handler failed: created when they are first needed."""

import time
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from model.retry_topics import DELAYS_S, dead_letter_topic_of, retry_topic_of
from wakeroll.connection import Connection, is_legal
from wakeroll.errors import InvalidUsage, WakerollError

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message of these topics: a message that its own topic accepts must fit with more headers."""

_COMMON = {"max.message.bytes": str(MAX_MESSAGE_BYTES), "cleanup.policy": "delete"}
_RETRY = _COMMON | {
    # The broker's time is the same for all; a message is due so long after the broker stored it.
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(30 * 24 * 3_600_000),
}
_DEAD = _COMMON | {"retention.ms": "-1"}
"""Dead letters are kept until somebody drops them."""


def ensure_failure_topics(connection: Connection, group_id: str, timeout: float, *, retries: bool = True) -> None:
    """Create the group's retry topic and dead letter topic if they are missing.

    Args:
        connection: the broker.
        group_id: the group.
        timeout: seconds for all requests together.
        retries: whether the group needs a retry topic.

    Raises:
        InvalidUsage: the group's name is too long for a topic's name.
        WakerollError: a topic is missing and cannot be created, or the retry topic has too few partitions.
    """
    wanted = [NewTopic(dead_letter_topic_of(group_id), 1, config=_DEAD)]
    if retries:
        wanted.append(NewTopic(retry_topic_of(group_id), len(DELAYS_S), config=_RETRY))
    for topic in wanted:
        if not is_legal(topic.topic):
            raise InvalidUsage(f"group_id is too long for a retry topic: {topic.topic!r} must have 249 characters")
    deadline = time.monotonic() + timeout
    admin = connection.admin(log_level=0)
    try:
        there = _partitions(admin, wanted, max(deadline - time.monotonic(), 0.1))
        missing = [topic for topic in wanted if not there[topic.topic]]
        for topic in missing:
            _create(admin, connection, topic, max(deadline - time.monotonic(), 0.1))
    except KafkaException as problem:
        raise WakerollError(f"cannot list the topics at {connection.bootstrap}: {problem.args[0].str()}") from None
    for topic in wanted:
        if 0 < there[topic.topic] < topic.num_partitions:
            raise WakerollError(
                f"topic {topic.topic} has {there[topic.topic]} partitions; it must have {topic.num_partitions}, one "
                "per delay level"
            )


def _partitions(admin: AdminClient, topics: list[NewTopic], timeout: float) -> Mapping[str, int]:
    """Return the number of partitions of each topic; 0 if it does not exist."""
    # A request for all topics, unlike one for a single topic, never creates any.
    known = admin.list_topics(timeout=timeout).topics
    return {topic.topic: len(known[topic.topic].partitions) if topic.topic in known else 0 for topic in topics}


def _create(admin: AdminClient, connection: Connection, topic: NewTopic, timeout: float) -> None:
    try:
        admin.create_topics([topic], operation_timeout=timeout, request_timeout=timeout)[topic.topic].result()
    except KafkaException as problem:
        error = problem.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        raise WakerollError(
            f"cannot create topic {topic.topic} at {connection.bootstrap}: {error.str()}; create it with "
            f"{topic.num_partitions} partitions, or pass on_error='raise' to run()"
        ) from None
