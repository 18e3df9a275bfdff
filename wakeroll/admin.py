"""The operator's tools for a group: changes of its committed offsets and settings, made by recorded requests."""

import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import TopicPartition

from model.decisions import Cause, Rebalance
from model.events import Configure, Reset
from model.partitioner import partition_of
from model.queue import Queue, TopicName
from wakeroll import argument_checks
from wakeroll.broker_check import look
from wakeroll.connection import Connection, Topics
from wakeroll.decision_log import DecisionLog
from wakeroll.errors import InvalidUsage, NotReachable, WakerollError
from wakeroll.group_summary import History
from wakeroll.keys import key_to_sign, read_keys
from wakeroll.operator_name import this_user
from wakeroll.operator_requests import ResetOutcome, append, await_reset, await_target
from wakeroll.partition_offsets import Positions
from wakeroll.reset import ResetPlan, ResetTarget, place_of, plan_of

ANSWER_S = 30.0
"""How long to wait for the coordinator (s). A batch takes about a second; the first ones after a start take longer."""


class Admin:
    """Shows and changes a group's committed offsets, and changes its settings, with or without members. For one thread.

    >>> with Admin("localhost:9092") as admin:  # doctest: +SKIP
    ...     plan = admin.plan_reset("billing", "first", topic="orders")
    ...     outcome = admin.reset(plan)
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        kafka_config: Mapping[str, str] | None = None,
        prefix: str = "wakeroll",
        keys: str | Path | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        """Connect.

        Args:
            bootstrap: ``host:port[,host:port]`` of the brokers.
            kafka_config: more librdkafka settings, for example for the login.
            prefix: prefix of the control plane's topic names.
            keys: file with the operator's key, which signs requests; None: the development key, which a deployment with
                its own keys rejects.
            connect_timeout: seconds to wait for a broker, here and for each later answer.

        Raises:
            InvalidUsage: an argument is not valid.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        self._connection = Connection(bootstrap, kafka_config or {}, Topics(prefix))
        self._timeout = connect_timeout
        self._keys = read_keys(keys)
        self._consumer = self._connection.operators_consumer()
        self._positions = Positions(self._consumer, connect_timeout)
        try:
            look(self._connection, (), connect_timeout)
        except WakerollError:
            self.close()
            raise

    def plan_reset(
        self, group_id: str, where: ResetTarget, *, topic: str | None = None, queue: Queue | None = None
    ) -> ResetPlan:
        """Return what a reset would change, without changing anything.

        The committed offsets and the topics of the group are read from its decisions that the decisions topic still
        contains, those of the last week. A topic that the group has not used in this time must be named.

        Args:
            group_id: the group.
            where: ``first``, ``last`` (behind the last message), an offset, or a time: a datetime with a zone, or an
                `EpochMs`. A time means the first message at or after it.
            topic: one topic; if omitted, all topics that the group has committed offsets for or consumes now.
            queue: one queue, instead of a topic.

        Raises:
            InvalidUsage: an argument is not valid, or names a topic, queue or offset that does not exist.
            NotReachable: no broker answered in time.
        """
        group_id, place = argument_checks.group_id_of(group_id), place_of(where)
        with self._connection.answering(self._timeout):
            log = self._log(group_id)
            log.from_the_start()
            history = History.of(log.until_now())
            self._consumer.unassign()
            queues = self._queues(group_id, history, topic, queue)
            return plan_of(group_id, place, self._positions.at(place, queues), history)

    def reset(self, plan: ResetPlan, *, by: str | None = None, timeout: float = ANSWER_S) -> ResetOutcome:
        """Execute a plan in one request: completely, or not at all.

        Args:
            plan: result of `plan_reset`.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Raises:
            InvalidUsage: `by` is not valid.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not know the queue, or the key that signs; nothing is changed.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        declared = {field.name: field.type for field in msgspec.structs.fields(Reset)}
        event = Reset(
            request_id=uuid.uuid4().hex,
            group_id=plan.group_id,
            offsets=plan.offsets,
            asked=plan.asked,
            by=argument_checks.checked("by", this_user() if by is None else by, declared["by"]),
        )
        with self._connection.answering(self._timeout):
            log = self._log(event.group_id)
            log.from_now_on()
            return await_reset(log, event, self._append(event), timeout)

    def configure(self, group_id: str, *, timeout: float = ANSWER_S, **settings: Any) -> Rebalance:
        """Change a group's settings, even before the group has members; settings that are not named stay unchanged.

        Without any setting, this requests a rebalance.

        Args:
            group_id: the group.
            timeout: seconds to wait for the coordinator.
            settings: fields of the event `configure`: profile, strategy, handover, session_timeout_ms and others.

        Returns:
            The rebalance that applies the settings; its `notes` are for the operator.

        Raises:
            InvalidUsage: there is no such setting, or its value is out of bounds.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the settings contradict those of the group, or the coordinator does not know the key that
                signs.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        event = _configure(argument_checks.group_id_of(group_id), settings)
        with self._connection.answering(self._timeout):
            log = self._log(group_id)
            log.from_now_on()
            return await_target(log, self._append(event), timeout)

    def close(self) -> None:
        """Close the connections to the brokers."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, event: Reset | Configure) -> Cause:
        return append(self._connection, self._consumer, event, key_to_sign(self._keys, "operator"), self._timeout)

    def _log(self, group_id: str) -> DecisionLog:
        """Return a reader of the partition with a group's decisions."""
        topic = self._connection.topics.decisions
        partitions = len(self._positions.queues(topic))
        if not partitions:
            raise NotReachable(f"no topic {topic} at {self._connection.bootstrap}; is the control plane running?")
        at = TopicPartition(topic, partition_of(group_id.encode(), partitions))
        return DecisionLog(self._consumer, at, group_id, self._timeout)

    def _queues(self, group_id: str, history: History, topic: str | None, queue: Queue | None) -> list[Queue]:
        """Return the queues to reset."""
        if topic is not None and queue is not None:
            raise InvalidUsage(f"both topic {topic!r} and queue {queue} are set; set only one of them")
        if queue is not None:
            found = self._positions.queues(queue.topic)
            if queue not in found:
                raise InvalidUsage(f"no queue {queue}; {queue.topic} has {len(found)} queues")
            return [queue]
        if topic is not None:
            found = self._positions.queues(argument_checks.checked("topic", topic, TopicName))
            if not found:
                raise InvalidUsage(f"no topic {topic} at {self._connection.bootstrap}")
            return found
        # A topic that was deleted in the meantime has no offsets to reset.
        found = [queue for name in history.topics for queue in self._positions.queues(name)]
        if not found:
            raise InvalidUsage(
                f"{self._connection.topics.decisions} contains no topics of group {group_id!r}; is the name correct? "
                "If the group has consumed nothing for a week, name a topic"
            )
        return found


def _configure(group_id: str, settings: Mapping[str, Any]) -> Configure:
    """Create a `configure` event from settings, checked against its declaration."""
    known = [name for name in Configure.__struct_fields__ if name != "group_id"]
    for name in settings:
        if name not in known:
            raise InvalidUsage(f"no setting {name!r}; there are: {', '.join(known)}")
    try:
        return msgspec.convert({"type": "configure", "group_id": group_id, **settings}, Configure)
    except msgspec.ValidationError as error:
        raise InvalidUsage(f"a setting is not valid: {error}") from None
