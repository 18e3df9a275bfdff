"""Ticks: the log's own time, appended to every control partition once a second."""

import logging
import math
import threading
import time
import uuid
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from model.config import DEFAULT_LIMITS, TICK_MS, Limits
from model.events import Tick
from model.records import Record
from model.signing import Keys, read_signature
from pipeline.failure_log import Trouble
from pipeline.observer.signed_producers import Ends, SignedProducer
from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

log = logging.getLogger(__name__)

_PERIOD_S = TICK_MS / 1000
_LAST_RECORDS = 2_000
_TICK = b'{"type":"tick"'


class Ticker:
    """Appends a tick to every control partition, each `TICK_MS`."""

    def __init__(self, connection: Connection, keys: Keys, limits: Limits = DEFAULT_LIMITS) -> None:
        self.ends: Ends = {}
        """The control partitions, and where they end; replaced, never changed, by whoever knows better."""
        self._learnt: Ends = self.ends
        self._observer = uuid.uuid4().hex
        self._limits = limits
        self._trouble = Trouble(log, "ticks arrive again")
        self._producer = SignedProducer(connection, keys, 2 * TICK_MS)

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop` is set, on a grid of periods: late ticks do not make the next ones later.

        Sets `stop` if it fails.
        """
        due_s = time.monotonic()
        try:
            while not stop.wait(max(due_s - time.monotonic(), 0)):
                self._tick()
                due_s = next_due_s(due_s, time.monotonic(), _PERIOD_S)
        finally:
            stop.set()

    def _tick(self) -> None:
        ends = self.ends
        if ends is not self._learnt:  # else the receipts of ticks know better
            self._producer.learn(ends)
            self._learnt = ends
        uptime_ms = time.monotonic_ns() // 1_000_000
        value = msgspec.json.encode(Tick(observer=self._observer, uptime_ms=uptime_ms, limits=self._limits))
        for topic, partition in ends:
            try:
                self._producer.produce(topic, value, partition, on_delivery=self._delivered)
            except KafkaException as error:  # the topic has fewer partitions by now
                self._trouble.began(f"cannot send ticks to {topic}: {error.args[0].str()}")
        self._producer.poll()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._trouble.ended()
        else:
            self._trouble.began(f"ticks do not arrive in {message.topic()}: {error.str()}")


class NewestTick(NamedTuple):
    """The newest tick of the log."""

    at_ms: int
    """Log time, epoch ms."""
    problem: str
    """Why its signature is refused; empty if it is verified."""


def is_tick(value: bytes | None) -> bool:
    """Return whether a record of a control topic is a tick."""
    return value is not None and value.startswith(_TICK)


def newest_tick(connection: Connection, keys: Keys, patience_s: float = 10.0) -> NewestTick | None:
    """Return the newest tick that the keys verify, else the newest one; None if there is none among the last records.

    It is looked for in one partition of the queues topic, whose records are few.

    Args:
        connection: the brokers.
        keys: without one of an observer, every tick counts as verified.
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
                problem = keys.problem(record, Tick(), read_signature(value)) if keys.of_role("observer") else ""
                newest = NewestTick(at_ms, problem)
                verified = verified if problem else newest
        raise NotReachable(f"{topic} could not be read within {patience_s:g} s at {connection.bootstrap}")
    except KafkaException as error:
        raise NotReachable(f"{topic} cannot be read at {connection.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def next_due_s(due_s: float, now_s: float, period_s: float) -> float:
    """Return the first time after `now_s` on the grid of `period_s` that `due_s` lies on.

    After a suspension the missed ones are left out.

    >>> next_due_s(10.0, 10.2, 1.0), next_due_s(10.0, 3_610.5, 1.0)
    (11.0, 3611.0)
    """
    return due_s + period_s * max(math.floor((now_s - due_s) / period_s) + 1, 1)
