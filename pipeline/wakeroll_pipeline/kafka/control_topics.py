"""The control plane's topics: missing ones are created, existing ones are checked."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic

from wakeroll.connection import Connection, Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.login_errors import is_denied
from wakeroll_model.config import CONTROL_PARTITIONS, INBOX_PARTITIONS, MAX_RECORD_BYTES
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster, Racks

_DAY_MS = 24 * 3_600_000
_LOOK_AGAIN_S = 0.1

# The log is the clock: with CreateTime, a client's own time would be used instead. The inbox and the decisions have the
# broker's time too, so that readers can measure how long a decision took.
_TIME = ("message.timestamp.type", "LogAppendTime")
# A compacted topic rejects records without a key, such as ticks, and loses the history.
_CLEANUP = ("cleanup.policy", "delete")
_SIZE = "max.message.bytes"
_RETENTION = "retention.ms"
_IN_SYNC = "min.insync.replicas"
_UNCLEAN = "unclean.leader.election.enable"
_SAFE_REPLICAS = 3
"""Number of replicas from which on two of them must have a record, so that writes continue without one broker."""


class InvalidTopics(InvalidUsage):
    """The control plane's topics do not fit this deployment; the message has one sentence per topic."""


class FewerBrokers(InvalidTopics):
    """There are fewer brokers than a new topic needs replicas. At a cold start, more brokers may follow."""


@dataclass(frozen=True)
class Finding:
    """A deviation of a topic from its expected settings."""

    topic: str
    text: str
    """Description of the deviation and of the expected value."""
    fatal: bool
    """Whether the control plane would decide wrongly, or not at all, with this deviation."""

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class _Expected:
    """Expected settings of one of the topics."""

    topic: str
    partitions: int
    setting: str
    """Name of wakeroll's setting for the number of partitions."""
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
    """Create missing topics and check existing ones. Several processes may do so at once.

    Args:
        connection: the brokers, and the names of the topics.
        partitions: number of partitions of the control topics and of the decisions.
        inbox_partitions: number of partitions of the inbox.
        replication: replicas of a new topic; -1 means the brokers' default. With three or more, two replicas must have
            a record before it counts as stored; with the default, the brokers' own `min.insync.replicas` applies.
        patience_s: how long to wait for each answer of the brokers, in seconds.

    Returns:
        Findings that are not fatal.

    Raises:
        InvalidTopics: a topic cannot be created, or has a fatal finding.
        FewerBrokers: a new topic needs more replicas than there are brokers.
        NotReachable: no broker answered in time.
    """
    cluster = Cluster(connection, patience_s=patience_s)
    expected = _expected(connection.topics, partitions, inbox_partitions)
    missing = [topic for topic, racks in cluster.racks(connection.topics.all).items() if racks == {}]
    safe = {_IN_SYNC: "2"} if replication >= _SAFE_REPLICAS else {}
    new = [
        NewTopic(each.topic, each.partitions, replication, config=each.config | safe)
        for each in expected
        if each.topic in missing
    ]
    refusals = cluster.create(new) if new else {}
    for topic, error in refusals.items():
        if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
            needs = "; an administrator creates it, or this principal needs Create on it" if is_denied(error) else ""
            raise _refused(topic, error, needs)
    findings = _findings(cluster, connection, expected, missing, patience_s)
    if wrong := [finding.text for finding in findings if finding.fatal]:
        raise InvalidTopics("\n".join(wrong))
    return findings


def _refused(topic: str, error: KafkaError, needs: str = "") -> InvalidTopics:
    """Return the error for a topic that the brokers did not create."""
    kind = FewerBrokers if error.code() == KafkaError.INVALID_REPLICATION_FACTOR else InvalidTopics
    return kind(f"cannot create the topic {topic}: {error.str()}{needs}")


def ensure_lease_topic(connection: Connection, *, replication: int = -1, patience_s: float = PATIENCE_S) -> None:
    """Create the topic of the leases, if it does not exist. Its settings do not matter to the leases.

    Raises:
        InvalidTopics: it cannot be created.
        NotReachable: no broker answered in time.
    """
    cluster, topic = Cluster(connection, patience_s=patience_s), connection.topics.leases
    if cluster.racks([topic])[topic] != {}:
        return
    config = dict([_TIME, _CLEANUP, (_RETENTION, str(_DAY_MS))])
    error = cluster.create([NewTopic(topic, 1, replication, config=config)])[topic]
    if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        raise _refused(topic, error)
    _await_topics(cluster, [topic], patience_s)


def ensure_chain_topic(
    connection: Connection, *, replication: int = -1, patience_s: float = PATIENCE_S
) -> Finding | None:
    """Create the topic of the newest lines of the tables' chains, if it does not exist.

    Returns:
        The reason why nothing can be published there; None if the topic exists.

    Raises:
        NotReachable: no broker answered in time.
    """
    cluster, topic = Cluster(connection, patience_s=patience_s), connection.topics.chain
    needs = (
        f"; to fix this: wakeroll acls publisher=PRINCIPAL --prefix {connection.topics.prefix} prints the ACLs, and an "
        "administrator creates the topic, or this principal needs Create on it"
    )

    def finding(what: str, error: KafkaError) -> Finding:
        more = needs if is_denied(error) else ""
        text = f"the newest lines of the chains are not published: {what} {topic}: {error.str()}{more}"
        return Finding(topic, text, fatal=False)

    there = cluster.racks([topic])[topic]
    if isinstance(there, KafkaError):
        return finding("cannot describe the topic", there)
    if there:
        return None
    error = cluster.create([NewTopic(topic, 1, replication, config=_OF_CHAIN)])[topic]
    if error is not None and error.code() != KafkaError.TOPIC_ALREADY_EXISTS:
        return finding("cannot create the topic", error)
    _await_topics(cluster, [topic], patience_s)
    return None


# Only the last record of each key is needed, and for ever. Segments end daily, because Kafka compacts only old ones.
_OF_CHAIN = dict([_TIME, ("cleanup.policy", "compact"), (_RETENTION, "-1"), ("segment.ms", str(_DAY_MS))])


def check_topics(
    connection: Connection,
    *,
    partitions: int = CONTROL_PARTITIONS,
    inbox_partitions: int = INBOX_PARTITIONS,
    patience_s: float = PATIENCE_S,
) -> list[Finding]:
    """Check the topics without creating any; a missing topic is a finding.

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
        # As many as the groups topic: a shard's decisions are partitioned by group, and `record` has a task for each.
        _Expected(topics.decisions, partitions, "partitions", 7 * _DAY_MS),
    ]


def _await_topics(cluster: Cluster, made: list[str], patience_s: float) -> None:
    """Wait until the brokers have the metadata of the topics that the controller has created."""
    deadline = time.monotonic() + patience_s
    while not all(cluster.racks(made).values()):
        if time.monotonic() > deadline:
            raise NotReachable(f"the brokers do not know {', '.join(made)} {patience_s:g} s after the creation")
        time.sleep(_LOOK_AGAIN_S)


def _findings(
    cluster: Cluster,
    connection: Connection,
    expected: list[_Expected],
    made: Sequence[str] = (),
    patience_s: float = PATIENCE_S,
) -> list[Finding]:
    """Compare the topics with their expected settings.

    Each request may reach another broker, and brokers receive the metadata of a new topic at different times. So the
    topics in `made`, which were just created, are queried until their metadata is complete.
    """
    topics = [each.topic for each in expected]
    deadline = time.monotonic() + patience_s
    while True:
        racks, settings = cluster.racks(topics), cluster.settings(topics)
        if all(racks[topic] and isinstance(settings[topic], dict) for topic in made):
            break
        if time.monotonic() > deadline:
            raise NotReachable(f"the brokers do not know {', '.join(made)} {patience_s:g} s after the creation")
        time.sleep(_LOOK_AGAIN_S)
    found = (_about(each, racks[each.topic], settings[each.topic], connection.bootstrap) for each in expected)
    return [*chain.from_iterable(found), *_about_replicas(cluster, racks)]


def _about(
    expected: _Expected, racks: Racks | KafkaError, settings: dict[str, str] | KafkaError, bootstrap: str
) -> list[Finding]:
    """Compare one topic with its expected settings."""
    topic = expected.topic
    if isinstance(racks, KafkaError):
        needs = "; this principal needs Describe on it" if is_denied(racks) else ""
        return [Finding(topic, f"cannot check {topic}: {racks.str()}{needs}", fatal=True)]
    if not racks:
        text = f"there is no topic {topic} at {bootstrap}; `wakeroll up` and `wakeroll run` create it"
        return [Finding(topic, text, fatal=True)]
    findings = []
    if len(racks) != expected.partitions:
        findings.append(Finding(topic, _other_number(expected, len(racks)), fatal=True))
    if isinstance(settings, KafkaError):
        text = f"cannot read the settings of {topic} ({settings.str()}); {_TIME[0]} must be {_TIME[1]}"
        return [*findings, Finding(topic, text, fatal=False)]

    def mend(name: str, value: str) -> str:
        change = f"--alter --entity-type topics --entity-name {topic} --add-config {name}={value}"
        return f"to fix this: kafka-configs.sh --bootstrap-server {bootstrap} {change}"

    for (name, value), why in ((_TIME, "the log is the clock"), (_CLEANUP, "the log must contain all records")):
        if settings[name] != value:
            text = f"{topic} has {name}={settings[name]}, it must be {value}, because {why}; {mend(name, value)}"
            findings.append(Finding(topic, text, fatal=True))
    if int(settings[_SIZE]) < MAX_RECORD_BYTES:
        text = f"{topic} accepts records of at most {settings[_SIZE]} bytes, a large group needs {MAX_RECORD_BYTES}"
        findings.append(Finding(topic, f"{text}; {mend(_SIZE, str(MAX_RECORD_BYTES))}", fatal=False))
    if 0 <= int(settings[_RETENTION]) < expected.retention_ms:
        text = f"{topic} keeps records for {settings[_RETENTION]} ms, it should be {expected.retention_ms} ms or longer"
        findings.append(Finding(topic, f"{text}; {mend(_RETENTION, str(expected.retention_ms))}", fatal=False))
    if racks.replicas >= _SAFE_REPLICAS and settings.get(_IN_SYNC) == "1":
        text = f"{topic} has {_IN_SYNC}=1: a record that only one of its {racks.replicas} brokers has counts as stored"
        findings.append(Finding(topic, f"{text}, and is lost with that broker; {mend(_IN_SYNC, '2')}", fatal=False))
    if settings.get(_UNCLEAN) == "true":
        text = f"{topic} has {_UNCLEAN}=true: a broker that lacks records may become the leader, and they are lost"
        findings.append(Finding(topic, f"{text}; {mend(_UNCLEAN, 'false')}", fatal=False))
    return findings


def _about_replicas(cluster: Cluster, racks: Mapping[str, Racks | KafkaError]) -> list[Finding]:
    """Report topics with one replica, if the cluster could have more."""
    alone = [topic for topic, its in racks.items() if isinstance(its, Racks) and its.replicas == 1]
    brokers = cluster.brokers() if alone else 1
    fix = "add replicas by kafka-reassign-partitions.sh; `replication` sets their number for new topics"
    return [
        Finding(
            topic, f"{topic} has 1 replica on a cluster of {brokers} brokers: it is lost with its broker; {fix}", False
        )
        for topic in alone
        if brokers > 1
    ]


def _other_number(expected: _Expected, found: int) -> str:
    """Describe how to fix a wrong number of partitions. The partition of a key depends on that number.

    A client determines its inbox partition once. Without the states of the old shards, a group would begin again in
    another one.
    """
    text = f"{expected.topic} has {found} partitions, `{expected.setting}` is {expected.partitions}; "
    if expected.setting == "inbox_partitions":
        return text + f"set it to {found}, and restart the clients if partitions were added after they were started"
    return (
        text + f"if the deployment has {found} shards, set it to {found}; if partitions were added since, run "
        f"`wakeroll reshard --partitions {found}`, which divides the state of the shards among them"
    )
