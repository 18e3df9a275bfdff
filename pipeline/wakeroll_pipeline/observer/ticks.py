"""Ticks: the log's own time, appended to every control partition once a second."""

import logging
import math
import threading
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll_model.config import DEFAULT_LIMITS, TICK_MS, Limits
from wakeroll_model.events import Tick
from wakeroll_model.feature_levels import NEWEST
from wakeroll_model.records import Record
from wakeroll_model.signature_bytes import read_signature
from wakeroll_model.signing import Keys
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.observer.signed_producers import Ends, SignedProducer

if TYPE_CHECKING:  # `wakeroll doctor` reads ticks, and need not have prometheus-client
    from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics

log = logging.getLogger(__name__)

_PERIOD_S = TICK_MS / 1000
_LAST_RECORDS = 2_000
_TICK = b'{"type":"tick"'


class Ticker:
    """Appends a tick to every control partition, every `TICK_MS`."""

    def __init__(
        self, connection: Connection, keys: Keys, metrics: "ObserverMetrics", limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.ends: Ends = {}
        """End offsets of the control partitions; the router replaces the mapping, but never changes it."""
        self._learnt: Ends = self.ends
        self._observer = uuid.uuid4().hex
        self._limits = limits
        self._metrics = metrics
        self._trouble = Trouble(log, "ticks are delivered again")
        self._producer = SignedProducer(connection, keys, 2 * TICK_MS)

    def run(self, stop: threading.Event) -> None:
        """Append ticks until `stop` is set, on a fixed grid of periods: a late tick does not delay the next ones.

        Set `stop` on a failure.
        """
        due_s = time.monotonic()
        try:
            while not stop.wait(max(due_s - time.monotonic(), 0)):
                self._metrics.health.beat("ticker")
                self._tick()
                due_s = next_due_s(due_s, time.monotonic(), _PERIOD_S)
        finally:
            stop.set()

    def _tick(self) -> None:
        ends = self.ends
        if ends is not self._learnt:  # otherwise the acknowledgements of ticks are more recent
            self._producer.learn(ends)
            self._learnt = ends
        uptime_ms = time.monotonic_ns() // 1_000_000
        value = msgspec.json.encode(Tick(observer=self._observer, uptime_ms=uptime_ms, limits=self._limits))
        for topic, partition in ends:
            try:
                self._producer.produce(topic, value, partition, on_delivery=self._delivered)
            except KafkaException as error:  # the topic now has fewer partitions
                self._metrics.failed("tick", error.args[0].name())
                self._trouble.began(f"cannot send ticks to {topic}: {error.args[0].str()}")
        self._producer.poll()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        self._metrics.delivered("tick", message, error)
        if error is None:
            self._trouble.ended()
        else:
            self._trouble.began(f"ticks were not delivered to {message.topic()}: {error.str()}")


class NewestTick(NamedTuple):
    """The newest tick of the log."""

    at_ms: int
    """Log time, epoch ms."""
    problem: str
    """Reason why its signature is not valid; empty if it is verified."""


def is_tick(value: bytes | None) -> bool:
    """Return whether a record of a control topic is a tick."""
    return value is not None and value.startswith(_TICK)


def newest_tick(connection: Connection, keys: Keys, patience_s: float = 10.0) -> NewestTick | None:
    """Return the newest tick with a valid signature, else the newest one; None if the last records contain no tick.

    The search is in one partition of the queues topic, because that topic has few records.

    Args:
        connection: the brokers.
        keys: keys of the deployment; if none of them is an observer's key, every tick counts as verified.
        patience_s: how long to wait for the brokers, in seconds.

    Raises:
        NotReachable: no broker answered within `patience_s` seconds.
    """
    topic = connection.topics.queues
    consumer = connection.consumer(**{"enable.partition.eof": True, "log_level": 0})
    try:
        first, after = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=patience_s)
        consumer.assign([TopicPartition(topic, 0, max(first, after - _LAST_RECORDS))])
        verified: NewestTick | None = None
        newest: NewestTick | None = None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                return verified or newest
            value, offset = message.value(), message.offset()
            if value is not None and offset is not None and is_tick(value):
                at_ms = message.timestamp()[1]
                record = Record(topic, 0, offset, at_ms, message.key(), value)
                signature = read_signature(value, NEWEST)
                problem = keys.problem(record, Tick(), signature) if keys.of_role("observer") else ""
                newest = NewestTick(at_ms, problem)
                verified = verified if problem else newest
            if offset is not None and offset + 1 >= after:
                return verified or newest  # the end of a busy log is not reported
        raise NotReachable(f"cannot read {topic} at {connection.bootstrap} within {patience_s:g} s")
    except KafkaException as error:
        raise NotReachable(f"cannot read {topic} at {connection.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def next_due_s(due_s: float, now_s: float, period_s: float) -> float:
    """Return the first time after `now_s` on the grid of `period_s` that contains `due_s`.

    Times that were missed during a suspension are skipped.

    >>> next_due_s(10.0, 10.2, 1.0), next_due_s(10.0, 3_610.5, 1.0)
    (11.0, 3611.0)
    """
    return due_s + period_s * max(math.floor((now_s - due_s) / period_s) + 1, 1)
