"""The operator's tools for a group: changes of its offsets, settings and members, made by recorded requests."""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeVar

from wakeroll import argument_checks
from wakeroll.broker_check import look
from wakeroll.client_settings import KafkaConfig
from wakeroll.connection import Connection, Topics
from wakeroll.decision_log import DecisionLog
from wakeroll.errors import InvalidUsage, RequestRefused, WakerollError
from wakeroll.expectations import problem_in
from wakeroll.group_summary import History
from wakeroll.kafka_groups import KafkaGroups
from wakeroll.keys import key_to_sign, read_keys
from wakeroll.kick import KickOutcome
from wakeroll.name_lists import names_of
from wakeroll.next_message import in_short, next_message
from wakeroll.operator_name import this_user
from wakeroll.operator_requests import (
    ResetOutcome,
    append,
    await_decisions,
    await_report,
    await_reset,
    await_target,
    configure_of,
)
from wakeroll.own_process import OwnProcess
from wakeroll.partition_offsets import Positions
from wakeroll.reset import ResetPlan, ResetPoint, ResetTarget, Shift, in_words, place_of, plan_of
from wakeroll_model import deletions, inspections, kicks, pauses
from wakeroll_model.decisions import Cause, Membership, Offset, Rebalance
from wakeroll_model.events import Delete, Inspect, Kick, OperatorName, Pause, Request, Reset
from wakeroll_model.queue import Queue, TopicName
from wakeroll_model.records import type_of
from wakeroll_model.slicing import NOTE as SLICES_NOTE

ANSWER_S = 30.0
"""How long to wait for the coordinator (s). A batch takes about a second; the first ones after a start take longer."""
ROUTE_S = 5.0
"""How long to wait until the observer has reported a topic that nobody consumes (s)."""
RETRY_S = 1.0
_LONGEST_ASKED = 255

_Answer = TypeVar("_Answer")


class Admin:
    """Changes offsets and settings of groups, pauses and deletes them, kicks and inspects members. For one thread.

    >>> with Admin("localhost:9092") as admin:  # doctest: +SKIP
    ...     plan = admin.plan_reset("billing", "first", topic="orders")
    ...     outcome = admin.reset(plan)
    """

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        *,
        kafka_config: KafkaConfig | None = None,
        prefix: str = "wakeroll",
        keys: str | os.PathLike[str] | None = None,
        connect_timeout: float = 10.0,
    ) -> None:
        """Connect.

        Args:
            bootstrap: ``host:port[,host:port]`` of the brokers, or a list of such addresses.
            kafka_config: more librdkafka settings, for example for the login.
            prefix: prefix of the control plane's topic names.
            keys: file with the operator's key, which signs requests; None: the development key, which a deployment with
                its own keys rejects.
            connect_timeout: seconds to wait for a broker, here and for each later answer.

        Raises:
            InvalidUsage: an argument is not valid.
            NotReachable: no broker answered in time, or it has no control plane.
        """
        self._process = OwnProcess("Admin")
        self._closed = False
        self._connection = Connection(argument_checks.addresses_of(bootstrap), kafka_config or {}, Topics(prefix))
        self._timeout = connect_timeout
        self._keys = read_keys(keys)
        self._consumer = self._connection.operators_consumer()
        self._positions = Positions(self._consumer, connect_timeout)
        try:
            look(self._connection, (), connect_timeout, rights=("Write", "Describe"))
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
            where: ``first``, ``last`` (after the last message), an offset, or a time: a datetime with a zone, or an
                `EpochMs`. A time means the first message at or after it. ``current`` is the committed offset, or the
                end of a queue that has none; a `Shift` moves it, as far as the queue has messages.
            topic: one topic; if omitted, all topics that the group consumes now, or for which it has committed offsets.
            queue: one queue, instead of a topic.

        Raises:
            InvalidUsage: an argument is not valid, or names a topic, queue or offset that does not exist.
            NotReachable: no broker answered in time.
        """
        group_id, place = argument_checks.group_id_of(group_id), place_of(where)
        with self._answering():
            history = self._history(group_id)
            queues = self._queues(group_id, history, topic, queue)
            if place != "current" and not isinstance(place, Shift):
                return plan_of(group_id, in_words(place), self._at(place, queues), history)
            _refuse_broadcasting(group_id, history)
            known = history.lowest
            committed = {one: known.get(("", one)) for one in queues}
            if place == "current":
                ends = self._at("last", [one for one, offset in committed.items() if offset is None])
                wanted = ends | {one: offset for one, offset in committed.items() if offset is not None}
            else:
                wanted = {one: _known(one, offset) + place.messages for one, offset in committed.items()}
            offsets, notes = self._within(wanted)
            return plan_of(group_id, in_words(place), offsets, history, notes)

    def plan_offsets(self, group_id: str, offsets: Mapping[Queue, int], asked: str) -> ResetPlan:
        """Return what a reset of some queues, each to its own offset, would change; it changes nothing.

        An offset that a queue does not have becomes its first message or its end, and the plan's `notes` name it.

        Args:
            group_id: the group.
            offsets: queue -> offset of the next message to consume.
            asked: where the offsets come from, in words; a part of the recorded request.

        Raises:
            InvalidUsage: an argument is not valid, or a queue does not exist.
            NotReachable: no broker answered in time.
        """
        group_id = argument_checks.group_id_of(group_id)
        with self._answering():
            for topic in sorted({queue.topic for queue in offsets}):
                there = self._positions.queues(topic)
                if missing := sorted(one for one in offsets if one.topic == topic and one.whole not in there):
                    raise InvalidUsage(f"no queue {missing[0]}; {topic} has {len(there)} queues")
            history = self._history(group_id)
            kept, notes = self._within(offsets)
            return plan_of(group_id, asked[:_LONGEST_ASKED], kept, history, notes)

    def plan_like(
        self, group_id: str, other: str, *, topic: str | None = None, queue: Queue | None = None
    ) -> ResetPlan:
        """Return what a reset to the committed offsets of another group would change; it changes nothing.

        Queues for which the other group has no committed offset do not change.

        Args:
            group_id: the group.
            other: the group whose offsets are taken.
            topic: one topic; if omitted, all topics for which the other group has committed offsets.
            queue: one queue, instead of a topic.

        Raises:
            InvalidUsage: an argument is not valid, or the other group has no committed offsets there, or it broadcasts,
                so each client has its own.
            NotReachable: no broker answered in time.
        """
        group_id, other = argument_checks.group_id_of(group_id), argument_checks.group_id_of(other)
        _refuse_both(topic, queue)
        with self._answering():
            its = self._history(other)
            _refuse_broadcasting(other, its)
            offsets, notes = self._existing(
                {
                    one: offset
                    for (_, one), offset in its.lowest.items()
                    if topic in (None, one.topic) and queue in (None, one) and (one.slices == 1 or one == queue)
                }
            )
            if not offsets:
                where = "" if topic is None and queue is None else f" of {topic or queue}"
                raise InvalidUsage(
                    f"{self._connection.topics.decisions} contains no committed offset{where} of group {other!r}; is "
                    "the name correct?"
                )
            asked = f"to the offsets of group {other}"[:_LONGEST_ASKED]
            return plan_of(group_id, asked, offsets, self._history(group_id), notes)

    def plan_skip(self, group_id: str, queue: Queue, *, offset: int | None = None) -> ResetPlan:
        """Return what skipping the next message of a queue would change; it changes nothing.

        The committed offset becomes the offset after that message, so no handler receives the message any more. Later
        messages that were processed before their commit are delivered again, as after every reset.

        Args:
            group_id: the group.
            queue: the queue.
            offset: offset of the message, if it is known; then it is an error if the next message has another offset.

        Returns:
            The plan; a note describes the message.

        Raises:
            InvalidUsage: an argument is not valid, the queue does not exist, the group has no committed offset there,
                all messages are processed, the next message has another offset, or the group broadcasts.
            AccessDenied: the principal may not read the topic.
            NotReachable: no broker answered in time.
        """
        group_id = argument_checks.group_id_of(group_id)
        with self._answering():
            history = self._history(group_id)
            _refuse_broadcasting(group_id, history)
            self._queues(group_id, history, None, queue)
            if any(one.slices > 1 and one.whole == queue.whole for _, one in history.committed):
                raise InvalidUsage(
                    f"{queue.whole} is cut into slices, and the next message of a slice is not known here; "
                    "set the offset of the slice: `reset-offsets --queue TOPIC-N/IofN --to-offset OFFSET`"
                )
            committed = _known(queue, history.committed.get(("", queue)))
            message = next_message(self._connection, queue, committed, self._timeout)
        found = None if message is None else message.offset()
        if message is None or found is None:
            raise InvalidUsage(f"{queue} has no message to skip: {group_id} has processed all before {committed}")
        if offset not in (None, found):
            raise InvalidUsage(
                f"the next message of {queue} has offset {found}, not {offset}; `reset-offsets --to-offset` sets any "
                "offset"
            )
        return plan_of(group_id, f"past the message {found}", {queue: found + 1}, history, (in_short(message),))

    def plan_import(self, group_id: str, *, kafka_group: str | None = None, topic: str | None = None) -> ResetPlan:
        """Return what an import of the committed offsets of one of Kafka's own groups would change; it changes nothing.

        An offset that Kafka no longer has becomes the first message, and the plan's `notes` name it.

        Args:
            group_id: the group that receives the offsets.
            kafka_group: the group of Kafka that has them; if omitted, the one with the same name.
            topic: one topic; if omitted, all topics for which Kafka has offsets of the group.

        Raises:
            InvalidUsage: an argument is not valid, or Kafka's group has members, or no offsets of existing topics.
            WakerollError: Kafka refuses to describe the group.
            NotReachable: no broker answered in time.
        """
        group_id = argument_checks.group_id_of(group_id)
        source = group_id if kafka_group is None else kafka_group
        self._refuse_if_closed()
        found = KafkaGroups(self._connection, self._timeout).read(source)
        if found.members:
            raise InvalidUsage(
                f"Kafka's group {source!r} has members ({names_of(found.members)}); "
                "stop them first: they would go on committing, and read the same messages"
            )
        with self._answering():
            offsets, notes = self._existing(
                {queue: offset for queue, offset in found.offsets.items() if topic in (None, queue.topic)}
            )
            if not offsets:
                of_what = "an existing topic" if topic is None else f"the topic {topic}"
                raise InvalidUsage(f"Kafka's group {source!r} has no offsets of {of_what}; is the name correct?")
            asked = f"to the offsets of Kafka's group {source}"[:_LONGEST_ASKED]
            return plan_of(group_id, asked, offsets, self._history(group_id), notes)

    def reset(self, plan: ResetPlan, *, by: str | None = None, timeout: float = ANSWER_S) -> ResetOutcome:
        """Execute a plan in one request: completely, or not at all.

        The coordinator rejects a queue whose topic was not reported to it yet. The observer then reports their topics,
        and the request is repeated for up to five seconds.

        Args:
            plan: result of `plan_reset`.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Raises:
            InvalidUsage: `by` is not valid.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator has no such queue, or does not accept the key of the signature; nothing is
                changed.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        name = argument_checks.checked("by", this_user() if by is None else by, OperatorName)
        give_up_at = time.monotonic() + min(ROUTE_S, timeout)
        with self._answering():
            log = self._log(plan.group_id)
            log.from_now_on()
            while True:
                request_id = uuid.uuid4().hex
                event = Reset(
                    request_id=request_id, group_id=plan.group_id, offsets=plan.offsets, asked=plan.asked, by=name
                )
                try:
                    return await_reset(log, event, self._append(event), timeout)
                except RequestRefused as refused:
                    if refused.rule != "reset" or time.monotonic() > give_up_at:
                        raise
                time.sleep(RETRY_S)

    def configure(
        self,
        group_id: str,
        *,
        by: str | None = None,
        timeout: float = ANSWER_S,
        allow_unknown_strategy: bool = False,
        **settings: Any,
    ) -> Rebalance:
        """Change a group's settings, even before the group has members; settings that are not named stay unchanged.

        Without any setting, this requests a rebalance.

        Args:
            group_id: the group.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.
            allow_unknown_strategy: whether `strategy` may be one that this release does not have, because the
                coordinator is newer.
            settings: fields of the event `configure`: profile, strategy, handover, session_timeout_ms and others;
                `slices={"orders": 8}` cuts each partition of a topic into slices, and 1 removes them.

        Returns:
            The rebalance that applies the settings; its `notes` are for the operator.

        Raises:
            InvalidUsage: there is no such setting or strategy, or a value or `by` is out of bounds; no member
                subscribes a topic that would be cut into slices, or the members broadcast.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the settings contradict those of the group, or the coordinator does not accept the key of
                the signature, or has no slices yet.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        event = configure_of(group_id, this_user() if by is None else by, settings)
        if isinstance(event.strategy, str) and not allow_unknown_strategy:
            argument_checks.require_strategy(event.strategy, argument_checks.ALLOW_UNKNOWN)
        slices = event.slices or {}
        cuts = max(slices.values(), default=1) > 1
        with self._answering():
            if cuts:  # only the decisions, from the first one on, tell which topics the members have
                _refuse_slices(slices, group_id, self._history(group_id))
            log = self._log(group_id)
            log.from_now_on()
            done = await_target(log, self._append(event), timeout)
        is_noted = any(note.startswith(SLICES_NOTE) for note in done.notes)
        if cuts and not is_noted:
            raise RequestRefused(
                f"nothing is cut into slices: the shard of group {group_id!r} is below feature level 5, and ignores "
                "`slices`; `wakeroll upgrade` shows the levels and raises them",
                "settings",
            )
        return done

    def kick(
        self,
        group_id: str,
        client_id: str,
        *,
        keep_out_ms: int = 0,
        reason: str = "",
        by: str | None = None,
        timeout: float = ANSWER_S,
    ) -> KickOutcome:
        """Make a client leave its group, after it has handed its queues over; its consumer raises `ConsumerFenced`.

        The coordinator cannot see whether the client is alive, so its queues get new owners when it has released them,
        or when its session ends. The request needs feature level 4.

        Args:
            group_id: the group.
            client_id: the client; the instance that is a member now must leave.
            keep_out_ms: how long no other instance of the client may join (ms), at most a day; 0: it may join at once.
            reason: why, for the record; at most 255 characters.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Raises:
            InvalidUsage: an argument is not valid, or the client is no member; the message names the members.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        changes = self._kick(group_id, client_id, by, timeout, keep_out_ms=keep_out_ms, reason=reason)
        leaving = next((one for one in changes if one.change == "leaving"), None)
        assert leaving is not None, f"the coordinator accepts a kick by a `leaving`, not by {changes}"
        is_gone = any(one.change == "kicked" for one in changes)
        return KickOutcome(client_id, leaving.instance_id, is_gone, leaving.detail)

    def readmit(
        self, group_id: str, client_id: str, *, reason: str = "", by: str | None = None, timeout: float = ANSWER_S
    ) -> None:
        """Let a client join again although a kick keeps it out for some more time.

        Raises:
            InvalidUsage: an argument is not valid, or the client is not kept out; the message names the clients that
                are kept out.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        self._kick(group_id, client_id, by, timeout, readmit=True, reason=reason)

    def inspect(
        self, group_id: str, client_id: str, *, reason: str = "", by: str | None = None, timeout: float = ANSWER_S
    ) -> str:
        """Request a report from a member, and return it: running calls of its handler, with messages and stacks.

        The process of the member answers, even if all its handlers hang. The report is recorded as a change
        ``reported`` of the member. The request needs feature level 4.

        Args:
            group_id: the group.
            client_id: the member.
            reason: why, for the record; at most 255 characters.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator and the member.

        Raises:
            InvalidUsage: an argument is not valid, or the client is no member; the message names the members.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator, or the member, did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        wanted = {"group_id": group_id, "client_id": client_id, "reason": reason}
        return self._request(Inspect, by, timeout, await_report, **wanted)

    def pause(self, group_id: str, *, reason: str = "", by: str | None = None, timeout: float = ANSWER_S) -> str:
        """Pause a group: its members keep their queues, and deliver no message; return the recorded change, in words.

        Consumers receive it with their next decision, within seconds. Running calls of handlers go on. The pause ends
        with `resume`, or when the group is forgotten. It needs feature level 4; consumers of earlier releases do not
        pause.

        Args:
            group_id: the group.
            reason: why, for the record; at most 255 characters.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Raises:
            InvalidUsage: an argument is not valid, there is no such group, or it is paused already.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        return self._pause(group_id, by, timeout, reason=reason)

    def resume(self, group_id: str, *, reason: str = "", by: str | None = None, timeout: float = ANSWER_S) -> str:
        """Let the members of a paused group deliver messages again; return the recorded change, in words.

        Raises:
            InvalidUsage: an argument is not valid, or the group is not paused.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        return self._pause(group_id, by, timeout, resume=True, reason=reason)

    def _pause(self, group_id: str, by: str | None, timeout: float, **wanted: Any) -> str:
        """Send a `pause`, and return the detail of the change of the group."""
        decisions = self._request(Pause, by, timeout, await_decisions, group_id=group_id, **wanted)
        changed = next((one for one in decisions if isinstance(one, Membership)), None)
        assert changed is not None, f"the coordinator accepts a pause by a `membership`, not by {decisions}"
        return changed.detail

    def delete_group(self, group_id: str, *, reason: str = "", by: str | None = None, timeout: float = ANSWER_S) -> str:
        """Delete a group without members, with its committed offsets and settings; return what was deleted, in words.

        A consumer that joins later creates the group again, and starts by its `consume_from`. It needs feature level 4.

        Args:
            group_id: the group.
            reason: why, for the record; at most 255 characters.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Raises:
            InvalidUsage: an argument is not valid, there is no such group, or it has members; the message names them.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        decisions = self._request(Delete, by, timeout, await_decisions, group_id=group_id, what="group", reason=reason)
        forgotten = next((one for one in decisions if isinstance(one, Membership)), None)
        assert forgotten is not None, f"the coordinator deletes a group by a `forgotten`, not by {decisions}"
        return forgotten.detail

    def delete_offsets(
        self,
        group_id: str,
        topic: str | None = None,
        *,
        queue: Queue | None = None,
        reason: str = "",
        by: str | None = None,
        timeout: float = ANSWER_S,
    ) -> dict[tuple[Queue, str], int]:
        """Delete the committed offsets of a topic, or of one queue, that no member of the group subscribes.

        A consumer that subscribes the topic later starts by its `consume_from`. It needs feature level 4.

        Args:
            group_id: the group.
            topic: the topic, which may be deleted already.
            queue: one queue, instead of a topic.
            reason: why, for the record; at most 255 characters.
            by: who makes the request, for the record; if omitted, this process's user and host.
            timeout: seconds to wait for the coordinator.

        Returns:
            (queue, client_id) -> the deleted offset; client_id is empty unless the group broadcasts.

        Raises:
            InvalidUsage: an argument is not valid, there is no such offset, or members subscribe the topic; the message
                names them.
            InvalidKeys: there is no key of an operator to sign with.
            RequestRefused: the coordinator does not accept the key of the signature, or its feature level is too low.
            RequestUnanswered: the coordinator did not answer in time; the request is recorded.
            NotReachable: Kafka did not acknowledge the request in time.
        """
        if (topic is None) == (queue is None):
            raise InvalidUsage("name either a topic or a queue, whose offsets are deleted")
        group_id = argument_checks.group_id_of(group_id)
        queues = [queue] if queue is not None else self._committed_queues(group_id, topic or "")
        decisions = self._request(
            Delete, by, timeout, await_decisions, group_id=group_id, what="offsets", queues=queues, reason=reason
        )
        return {(one.queue, one.client_id): one.offset for one in decisions if isinstance(one, Offset) and one.deleted}

    def _committed_queues(self, group_id: str, topic: str) -> list[Queue]:
        """Return the queues of a topic with committed offsets; all queues of the topic if no decision names one."""
        name = argument_checks.checked("topic", topic, TopicName)
        with self._answering():
            found = {queue for _, queue in self._history(group_id).committed if queue.topic == name}
            queues = sorted(found or self._positions.queues(name))
        if not queues:
            raise InvalidUsage(f"group {group_id!r} has no committed offsets of {topic}, and there is no such topic")
        return queues

    def _kick(self, group_id: str, client_id: str, by: str | None, timeout: float, **wanted: Any) -> list[Membership]:
        """Send a `kick`, and return the changes of members that follow from it."""
        wanted |= {"group_id": group_id, "client_id": client_id}
        decisions = self._request(Kick, by, timeout, await_decisions, **wanted)
        return [one for one in decisions if isinstance(one, Membership)]

    def _request(
        self,
        declared: type[Kick] | type[Delete] | type[Pause] | type[Inspect],
        by: str | None,
        timeout: float,
        answer: Callable[[DecisionLog, Cause, float], _Answer],
        **wanted: Any,
    ) -> _Answer:
        """Send a request with these fields, and return its answer; `answer` waits for it."""
        named = {"by": this_user() if by is None else by, **wanted}
        if problem := problem_in(named, declared):
            raise InvalidUsage(problem)
        event = declared(request_id=uuid.uuid4().hex, **named)
        with self._answering():
            log = self._log(event.group_id)
            log.from_now_on()
            try:
                return answer(log, self._append(event), timeout)
            except RequestRefused as refused:
                if refused.rule in (kicks.RULE, deletions.RULE, pauses.RULE, inspections.RULE):
                    raise InvalidUsage(str(refused)) from None
                if refused.rule == "type":
                    raise RequestRefused(
                        f"the coordinator does not know the request {type_of(event)!r}: it needs feature level 4 "
                        "(`wakeroll upgrade` raises it)",
                        refused.rule,
                    ) from None
                raise

    def close(self) -> None:
        """Close the connections to the brokers; no other method may be called then. A second call does nothing."""
        if not self._closed and self._process.is_current:
            self._closed = True
            self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answering(self) -> AbstractContextManager[None]:
        """Refuse a call in a fork or after `close`, and convert Kafka's errors; see `Connection.answering`."""
        self._refuse_if_closed()
        return self._connection.answering(self._timeout)

    def _refuse_if_closed(self) -> None:
        self._process.require()
        if self._closed:
            raise InvalidUsage("this Admin is closed; create a new one")

    def _append(self, event: Request) -> Cause:
        return append(self._connection, self._consumer, event, key_to_sign(self._keys, "operator"), self._timeout)

    def _log(self, group_id: str) -> DecisionLog:
        """Return a reader of the partition with a group's decisions."""
        return DecisionLog.of_group(self._connection, self._consumer, group_id, self._timeout)

    def _history(self, group_id: str) -> History:
        """Return the state of a group by the decisions that still exist."""
        log = self._log(group_id)
        log.from_the_start()
        history = History.of(log.until_now())
        self._consumer.unassign()
        return history

    def _at(self, place: ResetPoint, queues: Iterable[Queue]) -> dict[Queue, int]:
        """Return the offset of a reset target in each queue; for a slice, the offset in its partition."""
        wanted = list(queues)
        found = self._positions.at(place, sorted({queue.whole for queue in wanted}))
        return {queue: found[queue.whole] for queue in wanted}

    def _within(self, offsets: Mapping[Queue, int]) -> tuple[dict[Queue, int], tuple[str, ...]]:
        """Return offsets, each moved into the range of its queue, and a sentence for each one that was moved."""
        wholes = sorted({queue.whole for queue in offsets})
        first, end = self._positions.at("first", wholes), self._positions.at("last", wholes)
        kept = {
            queue: min(max(offset, first[queue.whole]), end[queue.whole]) for queue, offset in sorted(offsets.items())
        }
        return kept, tuple(
            f"{queue} has no offset {offsets[queue]}; it has {first[queue.whole]} to {end[queue.whole]}, so {offset} "
            "is taken"
            for queue, offset in kept.items()
            if offset != offsets[queue]
        )

    def _existing(self, offsets: Mapping[Queue, int]) -> tuple[dict[Queue, int], tuple[str, ...]]:
        """Return offsets of existing queues, with the first offset for deleted ones, and sentences about changes."""
        topics = sorted({queue.topic for queue in offsets})
        there = {queue for topic in topics for queue in self._positions.queues(topic)}
        kept = {queue: offset for queue, offset in sorted(offsets.items()) if queue.whole in there}
        notes = [
            f"there is no queue {queue} any more; it is left out" for queue in sorted(offsets.keys() - kept.keys())
        ]
        # Consumers that read the messages of open transactions commit behind the end that others see.
        uncommitted = self._connection.operators_consumer(**{"isolation.level": "read_uncommitted"})
        try:
            positions = Positions(uncommitted, self._timeout)
            wholes = sorted({queue.whole for queue in kept})
            first, end = positions.at("first", wholes), positions.at("last", wholes)
        finally:
            uncommitted.close()
        for queue, offset in kept.items():
            if not first[queue.whole] <= offset <= end[queue.whole]:
                notes.append(f"{queue} has no offset {offset} any more; its first message is {first[queue.whole]}")
                kept[queue] = first[queue.whole]
        return kept, tuple(notes)

    def _queues(self, group_id: str, history: History, topic: str | None, queue: Queue | None) -> list[Queue]:
        """Return the queues to reset."""
        _refuse_both(topic, queue)
        if queue is not None:
            found = self._positions.queues(queue.topic)
            if queue.whole not in found:
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


def _known(queue: Queue, offset: int | None) -> int:
    """Return the committed offset of a queue.

    Raises:
        InvalidUsage: it is not known.
    """
    if offset is None:
        raise InvalidUsage(f"{queue} has no committed offset to count from; name other queues, or a target for it")
    return offset


def _refuse_both(topic: str | None, queue: Queue | None) -> None:
    if topic is not None and queue is not None:
        raise InvalidUsage(f"both topic {topic!r} and queue {queue} are set; set only one of them")


def _refuse_broadcasting(group_id: str, history: History) -> None:
    if history.mode == "broadcasting":
        raise InvalidUsage(
            f"each client of the broadcasting group {group_id!r} has offsets of its own; use 'first', 'last', an "
            "offset or a time"
        )


def _refuse_slices(slices: Mapping[str, int], group_id: str, history: History) -> None:
    """Refuse to cut topics without an effect, as far as decisions show it; a group without members may have any topic.

    Raises:
        InvalidUsage: the members broadcast, or have no queue of a topic.
    """
    topics = sorted(topic for topic, number in slices.items() if number > 1)
    if not history.members:
        return
    if history.mode == "broadcasting":
        raise InvalidUsage(
            f"group {group_id!r} broadcasts: each member reads all of {topics[0]}, which is therefore never cut"
        )
    known = history.topics_of_members
    if others := [topic for topic in topics if topic not in known]:
        there = f"queues of {names_of(known)}" if known else "no queues"
        raise InvalidUsage(f"no member of {group_id!r} has a queue of {others[0]}; they have {there}")
