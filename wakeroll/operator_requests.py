"""An operator's request: one record of a group, and the decisions that answer it."""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from model import broadcast, config
from model.decisions import Cause, Offset, Rebalance, Rejected
from model.events import Configure, Reset
from model.partitioner import partition_of
from model.queue import Queue
from model.signing import Key
from wakeroll.connection import Connection
from wakeroll.decision_log import DecisionLog, Said
from wakeroll.errors import NotReachable, WakerollError
from wakeroll.keys import new_signer
from wakeroll.partition_offsets import ends_of

_encode = msgspec.json.Encoder().encode


class RequestRefused(WakerollError):
    """The coordinator refused a request, and nothing has changed.

    Attributes:
        rule: which rule it broke, as a `rejected` decision names it.
    """

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class RequestUnanswered(WakerollError):
    """The coordinator has not answered in time; the request is on record, and will be carried out."""


@dataclass
class ResetOutcome:
    """What a reset did: the decisions that follow from it."""

    rebalance: Rebalance
    """The epoch that it took."""
    offsets: dict[tuple[Queue, str], Offset] = field(default_factory=dict)
    """(queue, client_id) -> the offset on record.  The client is who was given the queue anew, empty if nobody owned
    it; in a broadcasting group every client that the coordinator knows has one."""

    @property
    def is_broadcasting(self) -> bool:
        """Whether every client of the group has offsets of its own."""
        return self.rebalance.strategy == broadcast.STRATEGY

    def learn(self, decision: Said) -> None:
        """Take a decision, if it is one of these."""
        if isinstance(decision, Offset) and decision.cause == self.rebalance.cause:
            self.offsets[decision.queue, decision.client_id] = decision

    def is_complete(self, queues: int) -> bool:
        """Say whether nothing is missing, of a reset of so many queues.

        In a broadcasting group each queue has one offset a client, queue after queue: no matter how many clients there
        are, all is there when the queues have equally many.  Of a single queue, those of clients that left may be
        missing.
        """
        counts = Counter(queue for queue, _ in self.offsets)
        least = max(self.rebalance.clients, 1) if self.is_broadcasting else 1
        return len(counts) == queues and len(set(counts.values())) == 1 and min(counts.values()) >= least


def append(
    connection: Connection, consumer: Consumer, event: Reset | Configure, signing_key: Key, timeout: float
) -> Cause:
    """Sign a request, append it once, and return where it stands.

    Args:
        connection: the brokers.
        consumer: to ask where the request's partition ends, as its signature must say.
        event: the request.
        signing_key: of an operator.
        timeout: seconds to wait for each answer of the brokers.

    Raises:
        NotReachable: Kafka did not acknowledge it within `timeout` seconds, has no such topic, or did not tell in time
            where it ends.
    """
    topic, key = connection.topics.groups, event.group_id.encode()
    home, end = _place_of(connection, consumer, key, timeout)
    # Each request has a signer of its own: one that is acknowledged too late does not make the next one a repetition.
    value = new_signer(signing_key).sign(topic, home, key, _encode(event), end)
    timeout_ms = max(round(timeout * 1_000), 1)
    producer = connection.producer(
        **{
            "message.timeout.ms": timeout_ms,
            "request.timeout.ms": timeout_ms,
            "message.max.bytes": config.MAX_RECORD_BYTES,
            "error_cb": lambda _: None,
            "log_level": 0,
        }
    )
    receipts: list[tuple[KafkaError | None, Message]] = []
    producer.produce(topic, value=value, key=key, partition=home, on_delivery=lambda *receipt: receipts.append(receipt))
    producer.flush(timeout + 1)  # by then the message has timed out
    error, message = receipts[0] if receipts else (None, None)
    if message is None or error is not None:
        why = "no receipt" if error is None else error.str()
        raise NotReachable(
            f"Kafka at {connection.bootstrap} did not acknowledge the request within {timeout:g} s ({why}); "
            "it may be on record all the same: look before you repeat it"
        )
    partition, offset = message.partition(), message.offset()
    assert partition is not None, "a delivered message has a place"
    assert offset is not None, "a delivered message has a place"
    return Cause(topic, partition, offset)


def _place_of(connection: Connection, consumer: Consumer, key: bytes, timeout: float) -> tuple[int, int]:
    """Return the partition of a group's requests, and its end."""
    topic = connection.topics.groups
    try:
        partitions = len(consumer.list_topics(topic, timeout).topics[topic].partitions)
        if not partitions:
            raise NotReachable(f"no topic {topic} at {connection.bootstrap}; is the control plane running?")
        home = partition_of(key, partitions)
        return home, ends_of(consumer, TopicPartition(topic, home), timeout)[1]
    except KafkaException as problem:
        raise NotReachable(
            f"Kafka at {connection.bootstrap} did not tell within {timeout:g} s where {topic} ends "
            f"({problem.args[0].str()}); nothing was asked for"
        ) from None


def await_reset(log: DecisionLog, event: Reset, cause: Cause, timeout: float) -> ResetOutcome:
    """Wait for what a reset did.

    Args:
        log: began before the request was appended.
        event: the request.
        cause: where it stands.
        timeout: seconds to wait for the coordinator.

    Raises:
        RequestRefused: it sets nothing, for what it names is not there.
        RequestUnanswered: the time is over.
    """
    outcome: ResetOutcome | None = None
    for decisions in _answers(log, cause, timeout):
        for decision in decisions:
            if decision.cause == cause and isinstance(decision, Rebalance):
                outcome = ResetOutcome(decision)  # it comes before the offsets
            elif outcome is not None:
                outcome.learn(decision)
        if outcome is not None and outcome.is_complete(len(event.offsets)):
            break
    if outcome is None:
        raise _no_answer(cause, timeout)
    if outcome.is_broadcasting:
        for decision in log.until_now():
            outcome.learn(decision)
    return outcome


def await_target(log: DecisionLog, cause: Cause, timeout: float) -> Rebalance:
    """Wait for the target that has new settings: the first one at or after their record.

    It has another cause when the last target was younger than the settle interval: then it comes with a tick.

    Args:
        log: began before the request was appended.
        cause: where the request stands.
        timeout: seconds to wait for the coordinator.

    Raises:
        RequestRefused: the settings cannot be; those of before hold.
        RequestUnanswered: the time is over.
    """
    for decisions in _answers(log, cause, timeout):
        for decision in decisions:
            if (
                isinstance(decision, Rebalance)
                and decision.trigger != "reset"
                and decision.cause.offset >= cause.offset
            ):
                return decision
    raise _no_answer(cause, timeout)


def _answers(log: DecisionLog, cause: Cause, timeout: float) -> Iterator[list[Said]]:
    """Yield what is decided about the group, as it comes, until the time is over."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        decisions = log.wait(left)
        for decision in decisions:
            if isinstance(decision, Rejected) and decision.cause == cause:
                raise RequestRefused(f"the coordinator refused it ({decision.rule}): {decision.detail}", decision.rule)
        yield decisions


def _no_answer(cause: Cause, timeout: float) -> RequestUnanswered:
    return RequestUnanswered(
        f"the coordinator has not answered within {timeout:g} s; the request is on record "
        f"({cause.topic}-{cause.partition}, offset {cause.offset}) and will be carried out when the coordinator runs: "
        "do not repeat it; `wakeroll doctor` says what is wrong"
    )
