"""Descriptions of Kafka's consumer groups, read from outside: members, assigned queues and committed offsets."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
)
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription, ListConsumerGroupsResult, MemberDescription

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll_model.coordinator_log.kafka_events import AssignedMember, SeenMember, Shares
from wakeroll_model.coordinator_log.kafka_names import client_name, topic_name
from wakeroll_model.queue import Queue

AT_ONCE = 50
"""Groups that are described at the same time."""
_SLICE_S = 0.05
_SILENCE_S = 1.0
"""Additional wait for an answer beyond the timeout of Kafka's client (s)."""

_Answer = TypeVar("_Answer")

_ASSIGNING = (ConsumerGroupState.PREPARING_REBALANCING, ConsumerGroupState.COMPLETING_REBALANCING)
"""States in which a classic group has no assignments. A group of KIP-848 has no such states: its members keep their
partitions."""


@dataclass(frozen=True)
class Listing:
    """The groups that the brokers list."""

    is_empty: Mapping[str, bool]
    """Kafka group -> whether it has no members."""
    problem: str = ""
    """Reason why a broker did not list its groups; empty if all did."""


@dataclass(frozen=True)
class Reading:
    """The answer about one group."""

    members: tuple[AssignedMember, ...] | None = None
    """None if the group is between two assignments, so that the owners of partitions are not known."""
    offsets: Mapping[Queue, int] = field(default_factory=dict)
    """Queue -> committed offset."""
    assignor: str = ""
    problem: str = ""
    """Reason why the group cannot be described; empty if it can."""


@dataclass(frozen=True)
class _Asked:
    description: Future[ConsumerGroupDescription] | None
    offsets: Future[ConsumerGroupTopicPartitions] = field(repr=False)


class GroupReader:
    """Queries to the brokers about groups. None of them joins a group or has an effect on one."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        """Prepare; each answer is waited for at most `timeout` seconds.

        Raises:
            InvalidUsage: Kafka's client rejects the settings.
        """
        self._connection = connection
        self._timeout = timeout
        self._admin = self._make()
        self._is_deaf = False
        """Whether the client got no answer about a group."""

    def list(self) -> Listing:
        """Return the groups that the brokers list, without share groups, which Kafka's client leaves out.

        Raises:
            NotReachable: no broker answered in time.
        """
        answer = self._wait(self._admin.list_consumer_groups(request_timeout=self._timeout), self._deadline())
        if isinstance(answer, str):
            raise NotReachable(f"cannot list the groups of {self._connection.bootstrap}: {answer}")
        assert isinstance(answer, ListConsumerGroupsResult), "the answer of list_consumer_groups"
        problems = sorted({_text(error) for error in answer.errors or []})
        if problems and not answer.valid:
            raise NotReachable(f"cannot list the groups of {self._connection.bootstrap}: {'; '.join(problems)}")
        listed = {one.group_id: one.state is ConsumerGroupState.EMPTY for one in answer.valid or []}
        return Listing(listed, "; ".join(problems))

    def read(self, groups: Mapping[str, bool]) -> dict[str, Reading]:
        """Return a description of each of these groups, at most `AT_ONCE`.

        Args:
            groups: Kafka group -> whether the list shows it without members; then only its offsets are queried.
        """
        if self._is_deaf:
            # After the restart of a broker, librdkafka 2.16 finds the coordinators of groups, but never connects to
            # them again; a new client does.
            self._admin, self._is_deaf = self._make(), False
        asked = {group: self._ask(group, is_empty=is_empty) for group, is_empty in groups.items()}
        deadline = self._deadline()
        return {group: self._reading(one, deadline) for group, one in asked.items()}

    def _ask(self, group: str, *, is_empty: bool) -> _Asked:
        description = None
        if not is_empty:
            description = self._admin.describe_consumer_groups([group], request_timeout=self._timeout)[group]
        wanted = [ConsumerGroupTopicPartitions(group)]  # one group per request: Kafka's client takes no more
        return _Asked(
            description, self._admin.list_consumer_group_offsets(wanted, request_timeout=self._timeout)[group]
        )

    def _reading(self, asked: _Asked, deadline: float) -> Reading:
        members: tuple[AssignedMember, ...] | None = ()
        assignor = ""
        if asked.description is not None:
            described = self._wait(asked.description, deadline)
            if isinstance(described, str):
                return Reading(problem=f"it cannot be described: {described}")
            members = None if described.state in _ASSIGNING else tuple(_members(described.members))
            assignor = described.partition_assignor or ""
        found = self._wait(asked.offsets, deadline)
        if isinstance(found, str):
            return Reading(problem=f"its offsets cannot be read: {found}")
        places = [at for at in found.topic_partitions or [] if at.error is None and at.offset >= 0]
        offsets = {Queue(at.topic, "", at.partition): at.offset for at in places}
        return Reading(members, offsets, assignor)

    def _deadline(self) -> float:
        return time.monotonic() + self._timeout + _SILENCE_S

    def _wait(self, future: Future[_Answer], deadline: float) -> _Answer | str:
        """Return the answer, or the reason why there is none."""
        while not future.done():
            if time.monotonic() > deadline:
                self._is_deaf = True
                return f"no answer within {self._timeout:g} s"
            try:
                future.exception(_SLICE_S)
            except TimeoutError:
                continue
        error = future.exception()
        if error is None:
            return future.result()
        found = error.args[0] if isinstance(error, KafkaException) and error.args else error
        self._is_deaf |= isinstance(found, KafkaError) and found.code() == KafkaError._TIMED_OUT
        return _text(error)

    def _make(self) -> AdminClient:
        return self._connection.admin(error_cb=lambda _: None, log_level=0, **{"reconnect.backoff.max.ms": 1_000})


def _members(described: Iterable[MemberDescription]) -> Iterable[AssignedMember]:
    """Yield members. They subscribe the topics of which they have partitions: Kafka shows no other topics."""
    for member in described:
        queues: Shares = {}
        for at in member.assignment.topic_partitions:
            queues.setdefault(topic_name(at.topic), []).append(at.partition)
        instance = member.group_instance_id
        seen = SeenMember(
            client_id=client_name(member.member_id, member.client_id, instance),
            member_id=member.member_id,
            kafka_client_id=member.client_id,
            host=member.host.lstrip("/"),
            static=bool(instance),
            topics=sorted(queues),
        )
        yield AssignedMember(member=seen, queues={topic: sorted(numbers) for topic, numbers in sorted(queues.items())})


def _text(error: BaseException) -> str:
    found = error.args[0] if isinstance(error, KafkaException) and error.args else error
    return found.str() if isinstance(found, KafkaError) else str(found)
