"""The control plane's four topics: made if they are missing, checked if they are there."""

import time
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from model.config import CONTROL_PARTITIONS, INBOX_PARTITIONS, MAX_RECORD_BYTES
from pipeline.kafka.topic_admin import PATIENCE_S, Cluster, Racks
from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage, NotReachable

_DAY_MS = 24 * 3_600_000
_LOOK_AGAIN_S = 0.1

# The log is the clock: a client's own time in a record would be taken for it.  The inbox and the decisions carry the
# broker's time too, so that a reader may see how long a decision took.
_TIME = ("message.timestamp.type", "LogAppendTime")
# A compacted topic refuses records without a key, such as ticks, and loses the history.
_CLEANUP = ("cleanup.policy", "delete")
_SIZE = "max.message.bytes"
_RETENTION = "retention.ms"


class InvalidTopics(InvalidUsage):
    """The control plane's topics are not as this deployment needs them; the message is a sentence for each."""


@dataclass(frozen=True)
class Finding:
    """Something about a topic that should be otherwise."""

    topic: str
    text: str
    """What was found, and what would be right."""
    fatal: bool
    """Whether the control plane would decide wrongly, or nothing, if it went on."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Expected:
    """How one of the topics should be."""

    topic: str
    partitions: int
    setting: str
    """What our settings call the number of partitions."""
    retention_ms: int

    @property
    def config(self) -> dict[str, str]:
        return dict([_TIME, _CLEANUP, (_SIZE, str(MAX_RECORD_BYTES)), (_RETENTION, str(self.retention_ms))])


def ensure_topics(
    connection: Connection,
    *,
    partitions: int = CONTROL_PARTITIONS,
    inbox_partitions: int = INBOX_PARTITIONS,
    replication: int = -1,
    patience_s: float = PATIENCE_S,
) -> list[Finding]:
    """Make the topics that are missing, and check the others.  Several processes may do so at once.

    Args:
        connection: the brokers, and the names of the topics.
        partitions: of the control topics and the decisions.
        inbox_partitions: of the inbox.
        replication: replicas of a topic that is made; -1 leaves it to the brokers.
        patience_s: how long to wait for each answer of the brokers, in seconds.

    Returns:
        What could be better, but does not forbid to go on.

    Raises:
        InvalidTopics: a topic cannot be made, or is such that the control plane would decide wrongly.
        NotReachable: no broker answered in time.
    """
    cluster = Cluster(connection, patience_s=patience_s)
    expected = _expected(connection.topics, partitions, inbox_partitions)
    missing = [topic for topic, racks in cluster.racks(connection.topics.all).items() if racks == {}]
    new = [
        NewTopic(each.topic, each.partitions, replication, config=each.config)
        for each in expected
        if each.topic in missing
    ]
    refusals = cluster.create(new) if new else {}
    for topic, error in refusals.items():
        if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise InvalidTopics(f"cannot make the topic {topic}: {error.str()}")
    _await_topics(cluster, missing, patience_s)
    findings = _findings(cluster, connection, expected)
    if wrong := [finding.text for finding in findings if finding.fatal]:
        raise InvalidTopics("\n".join(wrong))
    return findings


def check_topics(
    connection: Connection,
    *,
    partitions: int = CONTROL_PARTITIONS,
    inbox_partitions: int = INBOX_PARTITIONS,
    patience_s: float = PATIENCE_S,
) -> list[Finding]:
    """Check the topics without making any; a missing one is a finding.

    Raises:
        NotReachable: no broker answered in time.
    """
    cluster = Cluster(connection, patience_s=patience_s)
    return _findings(cluster, connection, _expected(connection.topics, partitions, inbox_partitions))


def _expected(topics: Topics, partitions: int, inbox_partitions: int) -> list[_Expected]:
    return [
        _Expected(topics.groups, partitions, "partitions", 7 * _DAY_MS),
        _Expected(topics.queues, partitions, "partitions", _DAY_MS),
        _Expected(topics.inbox, inbox_partitions, "inbox_partitions", _DAY_MS),
        # As many as the groups: a shard's decisions are spread by group, and `record` reads one task a partition.
        _Expected(topics.decisions, partitions, "partitions", 7 * _DAY_MS),
    ]


def _await_topics(cluster: Cluster, made: list[str], patience_s: float) -> None:
    """Wait until a broker knows the topics that the controller has just made."""
    deadline = time.monotonic() + patience_s
    while made and not all(cluster.racks(made).values()):
        if time.monotonic() > deadline:
            raise NotReachable(f"the brokers do not know {', '.join(made)} {patience_s:g} s after making them")
        time.sleep(_LOOK_AGAIN_S)


def _findings(cluster: Cluster, connection: Connection, expected: list[_Expected]) -> list[Finding]:
    racks = cluster.racks(each.topic for each in expected)
    settings = cluster.settings(each.topic for each in expected)
    return list(
        chain.from_iterable(
            _about(each, racks[each.topic], settings[each.topic], connection.bootstrap) for each in expected
        )
    )


def _about(
    expected: _Expected, racks: Racks | KafkaError, settings: dict[str, str] | KafkaError, bootstrap: str
) -> list[Finding]:
    """Compare one topic with what it should be."""
    topic = expected.topic
    if isinstance(racks, KafkaError):
        return [Finding(topic, f"{topic} cannot be looked at: {racks.str()}", fatal=True)]
    if not racks:
        text = f"there is no topic {topic} at {bootstrap}; `wakeroll up` and `wakeroll run` make it"
        return [Finding(topic, text, fatal=True)]
    findings = []
    if len(racks) != expected.partitions:
        findings.append(Finding(topic, _other_number(expected, len(racks)), fatal=True))
    if isinstance(settings, KafkaError):
        text = f"the settings of {topic} cannot be read ({settings.str()}); {_TIME[0]} must be {_TIME[1]}"
        return [*findings, Finding(topic, text, fatal=False)]

    def mend(name: str, value: str) -> str:
        change = f"--alter --entity-type topics --entity-name {topic} --add-config {name}={value}"
        return f"mend it with: kafka-configs.sh --bootstrap-server {bootstrap} {change}"

    for (name, value), why in ((_TIME, "the log is the clock"), (_CLEANUP, "it is a log of all that happened")):
        if settings[name] != value:
            text = f"{topic} has {name}={settings[name]}, it must be {value}, for {why}; {mend(name, value)}"
            findings.append(Finding(topic, text, fatal=True))
    if int(settings[_SIZE]) < MAX_RECORD_BYTES:
        text = f"{topic} takes records of {settings[_SIZE]} bytes at most, a large group's need {MAX_RECORD_BYTES}"
        findings.append(Finding(topic, f"{text}; {mend(_SIZE, str(MAX_RECORD_BYTES))}", fatal=False))
    if 0 <= int(settings[_RETENTION]) < expected.retention_ms:
        text = f"{topic} keeps records for {settings[_RETENTION]} ms, it should be {expected.retention_ms} ms or longer"
        findings.append(Finding(topic, f"{text}; {mend(_RETENTION, str(expected.retention_ms))}", fatal=False))
    return findings


def _other_number(expected: _Expected, found: int) -> str:
    """Say what to do about another number of partitions: a key's partition follows from it.

    A client looks for its inbox once.  A group would be decided about in two shards, one of which expires its members.
    """
    text = f"{expected.topic} has {found} partitions, `{expected.setting}` is {expected.partitions}; "
    if expected.setting == "inbox_partitions":
        return text + f"set it to {found}, and restart the clients if the topic got more since they were started"
    return (
        text + f"if the deployment was made with {found}, set it to {found}; if the topic got more since, it cannot be "
        "used any longer, for the number is fixed for the life of a deployment: make a new one, with another --prefix"
    )
