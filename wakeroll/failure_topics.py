"""The topics for messages whose handler failed: each `run` checks them, and creates them when they are first needed."""

import logging
import time
from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, ResourceType

from wakeroll.connection import Connection, is_legal
from wakeroll.errors import AccessDenied, InvalidUsage, WakerollError
from wakeroll.login_errors import is_denied
from wakeroll_model.retry_topics import DELAYS_S, dead_letter_topic_of, retry_topic_of

log = logging.getLogger("wakeroll")

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Largest message of these topics: each message that the original topic accepts must fit, with additional headers."""

_COMMON = {"max.message.bytes": str(MAX_MESSAGE_BYTES), "cleanup.policy": "delete"}
_RETRY = _COMMON | {
    # The broker's time is the same for all; a message is due so long after the broker stored it.
    "message.timestamp.type": "LogAppendTime",
    "retention.ms": str(30 * 24 * 3_600_000),
}
_DEAD = _COMMON | {"retention.ms": "-1"}
"""Settings of the dead letter topic. Dead letters are kept until an operator drops them."""
HEADER_BYTES = 4 * 1024
"""Room for the headers with the origin of a message; the longest error is 1 KiB of UTF-8."""
_SAFE_RETENTION_MS = 24 * 3_600_000
"""Retention of a retry topic below which a warning is logged (ms), because a group may be stopped for a night."""


def ensure_failure_topics(
    connection: Connection, group_id: str, timeout: float, *, retries: bool = True, topics: Iterable[str] = ()
) -> None:
    """Create the group's retry topic and dead letter topic if they are missing; otherwise check them.

    Settings that would lose messages or refuse all of them are errors. Those that would refuse some, or delay them, are
    warnings in the log. Settings that the brokers do not show to this user are not checked.

    Args:
        connection: the broker.
        group_id: the group.
        timeout: seconds for all requests together.
        retries: whether the group needs a retry topic.
        topics: topics of the group, whose messages must fit.

    Raises:
        InvalidUsage: the group's name is too long for a topic's name.
        AccessDenied: the brokers deny this user to write to a topic, or to read the retry topic.
        WakerollError: a topic is missing and cannot be created, the retry topic has too few partitions, or a topic is
            compacted or has a retention below the longest delay.
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
        existing = [
            topic.topic
            for topic in wanted
            if there[topic.topic] or not _create(admin, connection, topic, max(deadline - time.monotonic(), 0.1))
        ]
    except KafkaException as problem:
        raise WakerollError(f"cannot list the topics at {connection.bootstrap}: {problem.args[0].str()}") from None
    for topic in wanted:
        if 0 < there[topic.topic] < topic.num_partitions:
            raise WakerollError(
                f"topic {topic.topic} has {there[topic.topic]} partitions; it must have {topic.num_partitions}, one "
                "per delay level"
            )
    _check_rights(admin, connection, wanted, max(deadline - time.monotonic(), 0.1))
    settings = _settings(admin, [*existing, *topics], max(deadline - time.monotonic(), 0.1)) if existing else {}
    limits = [int(found.get("max.message.bytes", 0)) for name, found in settings.items() if name not in existing]
    largest = max(limits, default=0)
    for name in existing:
        if name in settings:
            _check_settings(name, settings[name], largest, delays=name == retry_topic_of(group_id))


def max_message_bytes(connection: Connection, topic: str, timeout: float) -> int | None:
    """Return the largest size that a topic accepts (bytes); None if the brokers do not show it to this user."""
    found = _settings(connection.admin(log_level=0), [topic], timeout).get(topic, {})
    return int(found["max.message.bytes"]) if "max.message.bytes" in found else None


def _check_rights(admin: AdminClient, connection: Connection, wanted: list[NewTopic], timeout: float) -> None:
    names = [topic.topic for topic in wanted]
    described = admin.describe_topics(
        TopicCollection(names), include_authorized_operations=True, request_timeout=timeout
    )
    for name, answer in described.items():
        try:
            allowed = answer.result().authorized_operations
        except KafkaException as problem:
            if not is_denied(problem.args[0]):
                continue  # the topic was listed a moment ago; a broker without this request denies nothing by that
            allowed = [AclOperation.UNKNOWN]
        needed = {"Write": AclOperation.WRITE}
        if name != wanted[0].topic:
            needed["Read"] = AclOperation.READ
        lacking = [word for word, operation in needed.items() if allowed and operation not in allowed]
        if lacking:
            raise AccessDenied(
                f"the brokers at {connection.bootstrap} deny {connection.user} {' and '.join(lacking)} on the topic "
                f"{name}, so a failed message could not be stored; `wakeroll acls client=PRINCIPAL --group GROUP` "
                "prints the ACLs; or pass on_error='raise' to run()"
            )


def _settings(admin: AdminClient, topics: list[str], timeout: float) -> dict[str, dict[str, str]]:
    """Return the settings of topics; leave out topics whose settings the brokers do not show to this user."""
    asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in dict.fromkeys(topics)]
    found: dict[str, dict[str, str]] = {}
    for resource, answer in admin.describe_configs(asked, request_timeout=timeout).items():
        try:
            entries = answer.result()
        except KafkaException:
            continue
        found[resource.name] = {name: entry.value for name, entry in entries.items() if entry.value is not None}
    return found


def _check_settings(topic: str, settings: Mapping[str, str], largest: int, *, delays: bool) -> None:
    """Check the settings of a topic that this process did not create.

    Args:
        topic: the topic.
        settings: its settings, as text.
        largest: largest message that a topic of the group accepts (bytes); 0 if not known.
        delays: whether messages wait in it for their next attempt.
    """
    if "compact" in settings.get("cleanup.policy", "delete"):
        raise WakerollError(
            f"topic {topic} has cleanup.policy={settings['cleanup.policy']}; it must be delete: compaction removes all "
            "but the last message of a key, and refuses messages without a key"
        )
    limit = int(settings.get("max.message.bytes", MAX_MESSAGE_BYTES))
    if limit < largest + HEADER_BYTES:
        log.warning(
            "topic %s has max.message.bytes=%d, and messages of the group may have %d bytes, and %d more with the "
            "headers of a failed message: larger ones will wait in place when they fail; set max.message.bytes=%d",
            topic,
            limit,
            largest,
            HEADER_BYTES,
            MAX_MESSAGE_BYTES,
        )
    if not delays:
        return
    retention_ms = int(settings.get("retention.ms", -1))
    if 0 <= retention_ms <= DELAYS_S[-1] * 1_000:
        raise WakerollError(
            f"topic {topic} has retention.ms={retention_ms}; it must be above {DELAYS_S[-1] * 1_000}, the longest "
            f"delay: messages would be deleted before their next attempt; {_RETRY['retention.ms']} is the default"
        )
    if 0 <= retention_ms < _SAFE_RETENTION_MS or int(settings.get("retention.bytes", -1)) >= 0:
        log.warning(
            "topic %s has retention.ms=%d and retention.bytes=%s: failed messages may be deleted before their next "
            "attempt, as while the group is stopped; set retention.ms=%s and retention.bytes=-1",
            topic,
            retention_ms,
            settings.get("retention.bytes", "-1"),
            _RETRY["retention.ms"],
        )
    if settings.get("message.timestamp.type", "LogAppendTime") != "LogAppendTime":
        log.warning(
            "topic %s has message.timestamp.type=%s: failed messages are retried too early or too late if the clocks "
            "of the members differ; set message.timestamp.type=LogAppendTime",
            topic,
            settings["message.timestamp.type"],
        )


def _partitions(admin: AdminClient, topics: list[NewTopic], timeout: float) -> Mapping[str, int]:
    """Return the number of partitions of each topic; 0 if it does not exist."""
    # A request for all topics, unlike one for a single topic, never creates any.
    known = admin.list_topics(timeout=timeout).topics
    return {topic.topic: len(known[topic.topic].partitions) if topic.topic in known else 0 for topic in topics}


def _or_grant(error: KafkaError, connection: Connection) -> str:
    if not is_denied(error):
        return ""
    return (
        f" or, if it exists, let {connection.user} write there (`wakeroll acls client=PRINCIPAL --group GROUP` prints "
        "the ACLs)"
    )


def _create(admin: AdminClient, connection: Connection, topic: NewTopic, timeout: float) -> bool:
    """Create a topic; return False if it exists already."""
    try:
        admin.create_topics([topic], operation_timeout=timeout, request_timeout=timeout)[topic.topic].result()
    except KafkaException as problem:
        error = problem.args[0]
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise WakerollError(
            f"cannot create topic {topic.topic} at {connection.bootstrap}: {error.str()}; create it with "
            f"{topic.num_partitions} partitions{_or_grant(error, connection)}, or pass on_error='raise' to run()"
        ) from None
    return True
