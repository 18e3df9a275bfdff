"""The minimum rights that each role needs in Kafka.

`wakeroll acls` prints them, `doctor` and the processes check them at their start, docs/security.md lists them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll.steady_clients import UNUSED_GROUP
from wakeroll_model.retry_topics import dead_letter_topic_of, retry_topic_of

Kind = Literal["topic", "group"]


class Right(NamedTuple):
    """Operations that a role performs on a topic or on a group of Kafka's own."""

    kind: Kind
    name: str
    operations: tuple[str, ...]
    """Names as in kafka-acls: Read, Write, Create, Delete, Alter, Describe, DescribeConfigs. Read, Write, Delete and
    Alter include Describe."""


@dataclass(frozen=True)
class Scope:
    """The names for which rights are needed."""

    topics: Topics
    messages: tuple[str, ...] = ()
    """Topics with messages that the application reads or writes."""
    groups: tuple[str, ...] = ()
    """Groups of the application: their topics of failed messages, or their groups of the same name in Kafka."""


def rights_of(roles: Iterable[str], scope: Scope) -> list[Right]:
    """Return the rights of a principal that has these roles, one per topic or group, in a fixed order.

    Raises:
        InvalidUsage: there is no such role.
    """
    rights: list[Right] = []
    for role in roles:
        if role not in ROLES:
            raise InvalidUsage(f"no role {role!r}; there are: {', '.join(ROLES)}")
        rights += ROLES[role](scope)
    return _merged(rights)


def _client(scope: Scope) -> Iterable[Right]:
    topics = scope.topics
    yield Right("topic", topics.groups, ("Write",))
    yield Right("topic", topics.queues, ("Write",))
    yield Right("topic", topics.inbox, ("Read",))
    yield from (Right("topic", name, ("Read",)) for name in scope.messages)
    for group in scope.groups:
        yield Right("topic", retry_topic_of(group), ("Read", "Write"))
        yield Right("topic", dead_letter_topic_of(group), ("Write",))
    yield _UNUSED


def _waker(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `wake`, which reads no messages: it joins a group of its own, and follows the decisions."""
    topics = scope.topics
    yield Right("topic", topics.groups, ("Write",))
    yield Right("topic", topics.queues, ("Write",))
    yield from (Right("topic", topic, ("Read",)) for topic in (topics.inbox, topics.decisions))
    yield from (Right("topic", name, ("Describe",)) for name in scope.messages)
    yield from (Right("topic", retry_topic_of(group), ("Describe",)) for group in scope.groups)
    yield _UNUSED


def _producer(scope: Scope) -> Iterable[Right]:
    topics = scope.topics
    yield Right("topic", topics.groups, ("Describe",))
    yield Right("topic", topics.queues, ("Write",))
    yield Right("topic", topics.inbox, ("Describe",))
    yield from (Right("topic", name, ("Write",)) for name in scope.messages)
    yield _UNUSED


def _observer(scope: Scope) -> Iterable[Right]:
    yield from (Right("topic", topic, ("Read", "Write")) for topic in scope.topics.control)
    yield from (Right("topic", name, ("Describe",)) for name in scope.messages)
    for group in scope.groups:
        yield from (Right("topic", name, ("Describe",)) for name in (retry_topic_of(group),))
    yield _UNUSED


def _mirror(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `observe --mirror-offsets`: those of an observer, and those to write offsets."""
    yield from _observer(scope)
    yield Right("topic", scope.topics.decisions, ("Read",))
    yield from (Right("topic", name, ("Read",)) for name in scope.messages)
    yield Right("group", f"{scope.topics.prefix}.offset-mirror", ("Read",))
    yield from (Right("group", group, ("Read",)) for group in scope.groups)


def _coordinator(scope: Scope) -> Iterable[Right]:
    topics = scope.topics
    yield from (Right("topic", topic, ("Read", "DescribeConfigs")) for topic in topics.control)
    yield Right("topic", topics.inbox, ("Write", "DescribeConfigs"))
    # After a loss of records, it reads which eras there were.
    yield Right("topic", topics.decisions, ("Read", "Write", "DescribeConfigs"))
    yield _UNUSED


def _recorder(scope: Scope) -> Iterable[Right]:
    topics = scope.topics
    yield from (Right("topic", topic, ("Read", "DescribeConfigs")) for topic in topics.control)
    yield Right("topic", topics.inbox, ("Describe", "DescribeConfigs"))
    yield Right("topic", topics.decisions, ("Read", "DescribeConfigs"))
    yield _UNUSED


def _publisher(scope: Scope) -> Iterable[Right]:
    """Yield the right to publish the newest lines of the tables' chains, beside those of a recorder."""
    yield Right("topic", scope.topics.chain, ("Read", "Write"))
    yield _UNUSED


def _auditor(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `check --bootstrap`."""
    yield Right("topic", scope.topics.chain, ("Read",))
    yield _UNUSED


def _standby(scope: Scope) -> Iterable[Right]:
    """Yield the rights that `run` needs for leases, beside those of its jobs."""
    yield Right("topic", scope.topics.leases, ("Read", "Write"))
    yield _UNUSED


def _viewer(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `serve`, `watch`, `state`, `describe` and `lag` with --bootstrap."""
    yield from (Right("topic", topic, ("Read",)) for topic in (*scope.topics.control, scope.topics.decisions))
    yield from (Right("topic", name, ("Describe",)) for name in scope.messages)
    yield _UNUSED


def _operator(scope: Scope) -> Iterable[Right]:
    topics = scope.topics
    yield Right("topic", topics.groups, ("Write",))
    yield Right("topic", topics.inbox, ("Describe",))
    yield Right("topic", topics.decisions, ("Read",))
    yield from (Right("topic", name, ("Describe",)) for name in scope.messages)
    yield _UNUSED


def _importer(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `import-offsets`: those of an operator, and those to read offsets of Kafka's groups."""
    yield from _operator(scope)
    yield from (Right("group", group, ("Describe",)) for group in scope.groups)


def _watcher(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `watch-kafka`: it reads Kafka's record; with a group, it may also describe that group."""
    yield Right("topic", "__consumer_offsets", ("Read",))
    yield from (Right("topic", name, ("Describe",)) for name in scope.messages or ("*",))
    yield from (Right("group", group, ("Describe",)) for group in scope.groups)
    yield _UNUSED


def _upgrader(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `upgrade`: those of a viewer, and those to write the records that raise the level."""
    yield from _viewer(scope)
    yield from (Right("topic", topic, ("Write",)) for topic in scope.topics.control)


def _resharder(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `reshard`: it decides the last records itself, and adds partitions to three topics."""
    yield from _coordinator(scope)
    yield from (Right("topic", topic, ("Alter",)) for topic in (*scope.topics.control, scope.topics.decisions))


def _tap(scope: Scope) -> Iterable[Right]:
    yield Right("topic", scope.topics.queues, ("Write",))
    yield from (Right("topic", name, ("Read",)) for name in scope.messages)
    yield _UNUSED


def _dead_letters(scope: Scope) -> Iterable[Right]:
    """Yield the rights of `dlq`."""
    for group in scope.groups:
        yield Right("topic", dead_letter_topic_of(group), ("Read", "Write", "Delete"))
        yield Right("topic", retry_topic_of(group), ("Write",))
    yield _UNUSED


def _administrator(scope: Scope) -> Iterable[Right]:
    """Yield the rights of the first `run`, which creates the topics, and of `doctor`."""
    yield from (Right("topic", topic, ("Create", "Describe", "DescribeConfigs")) for topic in scope.topics.all)
    yield Right("topic", scope.topics.leases, ("Create", "Describe"))
    yield Right("topic", scope.topics.chain, ("Create", "Describe"))
    yield Right("topic", scope.topics.queues, ("Read",))
    # A new deployment begins at the newest feature level.
    yield from (Right("topic", topic, ("Write",)) for topic in scope.topics.control)
    yield _UNUSED


# Only saves the brokers a denied request, and a line in their logs, per client.
_UNUSED = Right("group", UNUSED_GROUP, ("Describe",))

ROLES: Mapping[str, Callable[[Scope], Iterable[Right]]] = {
    "client": _client,
    "waker": _waker,
    "producer": _producer,
    "observer": _observer,
    "mirror": _mirror,
    "coordinator": _coordinator,
    "recorder": _recorder,
    "publisher": _publisher,
    "auditor": _auditor,
    "standby": _standby,
    "operator": _operator,
    "importer": _importer,
    "watcher": _watcher,
    "upgrader": _upgrader,
    "resharder": _resharder,
    "viewer": _viewer,
    "tap": _tap,
    "dead-letters": _dead_letters,
    "administrator": _administrator,
}
"""Role -> its rights in a scope."""

ON_CONTROL_TOPICS = tuple(role for role in ROLES if role not in ("dead-letters", "watcher"))
"""Roles with rights on the control plane's own topics."""


def _merged(rights: Iterable[Right]) -> list[Right]:
    """Return one right per topic or group. Describe is left out beside an operation that includes it."""
    found: dict[tuple[Kind, str], set[str]] = {}
    for right in rights:
        found.setdefault((right.kind, right.name), set()).update(right.operations)
    for operations in found.values():
        if operations & {"Read", "Write", "Delete"}:
            operations.discard("Describe")
    return [
        Right(kind, name, tuple(sorted(operations, key=_ORDER.index))) for (kind, name), operations in found.items()
    ]


_ORDER = ("Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs")
