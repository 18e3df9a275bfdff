"""Requests of an operator: one record of a group, and the decisions that follow from it."""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from wakeroll import argument_checks
from wakeroll.connection import Connection
from wakeroll.decision_log import DecisionLog, Said
from wakeroll.errors import InvalidUsage, NotReachable, RequestRefused, RequestUnanswered
from wakeroll.expectations import problem_in
from wakeroll.keys import new_signer
from wakeroll.partition_offsets import ends_of
from wakeroll.topic_slices import checked_slices
from wakeroll_model import broadcasting, config
from wakeroll_model.decisions import (
    BY_THE_SLICES,
    WITHOUT_TARGET,
    Cause,
    Fenced,
    Membership,
    Offset,
    Rebalance,
    Rejected,
)
from wakeroll_model.events import Configure, Request, Reset
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.signing import Key
from wakeroll_model.slices import sizes

_encode = msgspec.json.Encoder().encode


def configure_of(group_id: str, by: str, settings: Mapping[str, Any]) -> Configure:
    """Create a `configure` event from settings, checked against its declaration.

    Raises:
        InvalidUsage: a name or a value is out of bounds, or there is no such setting.
    """
    known = [name for name in Configure.__struct_fields__ if name not in ("group_id", "by")]
    for name in settings:
        if name not in known:
            raise InvalidUsage(f"no setting {name!r}; there are: {', '.join(known)}")
    if "slices" in settings:
        checked_slices("slices", settings["slices"])
    named = {"group_id": argument_checks.group_id_of(group_id), "by": by, **settings}
    try:
        return msgspec.convert({"type": "configure", **named}, Configure)
    except msgspec.ValidationError as error:
        raise InvalidUsage(problem_in(named, Configure) or f"a setting is not valid: {error}") from None


@dataclass
class ResetOutcome:
    """The result of a reset: the decisions that follow from it."""

    rebalance: Rebalance
    """Rebalance that records the epoch of the reset."""
    offsets: dict[tuple[Queue, str], Offset] = field(default_factory=dict)
    """(queue, client_id) -> the recorded offset. The client is the new owner of the queue; empty if it has no owner. In
    a broadcasting group, every client that the coordinator knows has an entry."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether every client of the group has its own offsets."""
        return self.rebalance.strategy == broadcasting.STRATEGY

    def learn(self, decision: Said) -> None:
        """Process a decision; ignore it if it does not follow from this reset."""
        if not isinstance(decision, Offset) or decision.cause != self.rebalance.cause:
            return
        if not decision.deleted and decision.reset_by != BY_THE_SLICES:  # these are of former slices
            self.offsets[decision.queue, decision.client_id] = decision

    def is_complete(self, queues: Collection[Queue]) -> bool:
        """Return whether all decisions of a reset of these queues were received.

        A partition that is cut has one decision for each slice. In a broadcasting group, each queue has one offset per
        client, and the decisions are emitted queue by queue. So all have arrived when every queue has the same number
        of offsets. If only one queue is reset, the offsets of clients that left may be missing.
        """
        if not self.is_broadcasting:
            found, wanted = sizes(queue for queue, _ in self.offsets), sizes(queues)
            return all(found[whole] >= size for whole, size in wanted.items())
        counts = Counter(queue for queue, _ in self.offsets)
        least = max(self.rebalance.clients, 1)
        return len(counts) == len(queues) and len(set(counts.values())) == 1 and min(counts.values()) >= least


def append(connection: Connection, consumer: Consumer, event: Request, signing_key: Key, timeout: float) -> Cause:
    """Sign a request, append it once, and return its position in the log.

    Args:
        connection: the brokers.
        consumer: reads the end offset of the request's partition, which the signature must contain.
        event: the request.
        signing_key: key of an operator.
        timeout: seconds to wait for each answer of the brokers.

    Raises:
        NotReachable: Kafka did not acknowledge the request within `timeout` seconds, has no such topic, or did not
            return the end offset in time.
    """
    topic, key = connection.topics.groups, event.group_id.encode()
    timeout_ms = max(round(timeout * 1_000), 1)
    # Before the queries: a record that is passed to a producer at once waits half a second for its connection.
    producer = connection.producer(
        **{
            "message.timeout.ms": timeout_ms,
            "request.timeout.ms": timeout_ms,
            "message.max.bytes": config.MAX_RECORD_BYTES,
            "error_cb": lambda _: None,
            "log_level": 0,
        }
    )
    home, end = _place_of(connection, consumer, key, timeout)
    # Each request has its own signer: a request that Kafka stores late must not make the next one look like a replay.
    value = new_signer(signing_key).sign(topic, home, key, _encode(event), end)
    receipts: list[tuple[KafkaError | None, Message]] = []
    producer.produce(topic, value=value, key=key, partition=home, on_delivery=lambda *receipt: receipts.append(receipt))
    producer.flush(timeout + 1)  # the message times out within this time
    error, message = receipts[0] if receipts else (None, None)
    if message is None or error is not None:
        why = "no acknowledgement" if error is None else error.str()
        raise NotReachable(
            f"Kafka at {connection.bootstrap} did not acknowledge the request within {timeout:g} s ({why}); "
            "it may still have been recorded: check before you repeat it"
        )
    partition, offset = message.partition(), message.offset()
    assert partition is not None, "a delivered message has a partition and an offset"
    assert offset is not None, "a delivered message has a partition and an offset"
    return Cause(topic, partition, offset)


def _place_of(connection: Connection, consumer: Consumer, key: bytes, timeout: float) -> tuple[int, int]:
    """Return the partition of a group's requests, and its end offset."""
    topic = connection.topics.groups
    try:
        partitions = len(consumer.list_topics(topic, timeout).topics[topic].partitions)
        if not partitions:
            raise NotReachable(f"no topic {topic} at {connection.bootstrap}; is the control plane running?")
        home = partition_of(key, partitions)
        return home, ends_of(consumer, TopicPartition(topic, home), timeout)[1]
    except KafkaException as problem:
        raise NotReachable(
            f"Kafka at {connection.bootstrap} did not return the end offset of {topic} within {timeout:g} s "
            f"({problem.args[0].str()}); no request was sent"
        ) from None


def await_reset(log: DecisionLog, event: Reset, cause: Cause, timeout: float) -> ResetOutcome:
    """Wait for the result of a reset.

    Args:
        log: positioned before the request was appended.
        event: the request.
        cause: position of the request in the log.
        timeout: seconds to wait for the coordinator.

    Raises:
        RequestRefused: the request names queues that do not exist; no offset is set.
        RequestUnanswered: the timeout has passed.
        NotReachable: Kafka did not return the end of the decisions in time, to read the rest of the result.
    """
    outcome: ResetOutcome | None = None
    for decisions in _answers(log, cause, timeout):
        for decision in decisions:
            if decision.cause == cause and isinstance(decision, Rebalance):
                outcome = ResetOutcome(decision)  # it precedes the offsets
            elif outcome is not None:
                outcome.learn(decision)
        if outcome is not None and outcome.is_complete([entry.queue for entry in event.offsets]):
            break
    if outcome is None:
        raise _no_answer(cause, timeout)
    if outcome.is_broadcasting:
        for decision in log.until_now():
            outcome.learn(decision)
    return outcome


def await_target(log: DecisionLog, cause: Cause, timeout: float) -> Rebalance:
    """Wait for the target that applies new settings: the first one at or after their record.

    Its cause may be a later tick: if the last target is younger than the settle interval, the new one waits for a tick.

    Args:
        log: positioned before the request was appended.
        cause: position of the request in the log.
        timeout: seconds to wait for the coordinator.

    Raises:
        RequestRefused: the settings are not valid; the previous ones stay in effect.
        RequestUnanswered: the timeout has passed.
    """
    for decisions in _answers(log, cause, timeout):
        for decision in decisions:
            if (
                isinstance(decision, Rebalance)
                and decision.trigger not in WITHOUT_TARGET
                and decision.cause.offset >= cause.offset
            ):
                return decision
    raise _no_answer(cause, timeout)


def await_decisions(log: DecisionLog, cause: Cause, timeout: float) -> list[Said]:
    """Wait for the decisions about the group that follow from a request at once, such as a kick or a deletion.

    Args:
        log: positioned before the request was appended.
        cause: position of the request in the log.
        timeout: seconds to wait for the coordinator.

    Raises:
        RequestRefused: the request cannot be carried out, or the coordinator does not support it.
        RequestUnanswered: the timeout has passed.
        NotReachable: Kafka did not return the end of the decisions in time, to read the rest of the result.
    """
    for decisions in _answers(log, cause, timeout):
        if any(decision.cause == cause for decision in decisions):
            heard = [*decisions, *log.until_now()]
            return [one for one in heard if one.cause == cause]
    raise _no_answer(cause, timeout)


def await_report(log: DecisionLog, cause: Cause, timeout: float) -> str:
    """Wait for a member's report about itself, and return it.

    Args:
        log: positioned before the request was appended.
        cause: position of the request in the log.
        timeout: seconds to wait for the coordinator and the member.

    Raises:
        RequestRefused: the client is no member, or the coordinator does not support the request.
        RequestUnanswered: the timeout has passed, or the member is gone.
    """
    asked: Membership | None = None
    for decisions in _answers(log, cause, timeout):
        for one in decisions:
            if isinstance(one, Membership) and one.cause == cause:
                asked = one
            elif asked is None:
                continue
            elif isinstance(one, Fenced) and one.instance_id == asked.instance_id:
                raise RequestUnanswered(f"client {asked.client_id!r} has left its group meanwhile ({one.reason})")
            elif isinstance(one, Membership) and (one.instance_id, one.change) == (asked.instance_id, "reported"):
                return one.detail
    if asked is None:
        raise _no_answer(cause, timeout)
    raise RequestUnanswered(
        f"client {asked.client_id!r} did not answer within {timeout:g} s: its process is suspended or unreachable, or "
        "lets no other thread run, or its SDK is of an earlier release; an answer that comes later is on record "
        "(`wakeroll describe GROUP --member CLIENT`)"
    )


def _answers(log: DecisionLog, cause: Cause, timeout: float) -> Iterator[list[Said]]:
    """Yield the decisions about the group as they arrive, until the timeout."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        decisions = log.wait(left)
        for decision in decisions:
            if isinstance(decision, Rejected) and decision.cause == cause:
                raise RequestRefused(
                    f"the coordinator rejected the request ({decision.rule}): {decision.detail}", decision.rule
                )
        yield decisions


def _no_answer(cause: Cause, timeout: float) -> RequestUnanswered:
    return RequestUnanswered(
        f"the coordinator did not answer within {timeout:g} s; the request is recorded "
        f"({cause.topic}-{cause.partition}, offset {cause.offset}) and will be executed when the coordinator runs: "
        "do not repeat it; `wakeroll doctor` reports what is wrong"
    )
