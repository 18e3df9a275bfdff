"""Ticks: the log's own time, appended to every control partition once a second."""

import logging
import math
import threading
import time
from collections.abc import Mapping

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from model.config import MAX_RECORD_BYTES, TICK_MS
from model.events import Tick
from pipeline.trouble import Trouble
from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

log = logging.getLogger(__name__)

_TICK = msgspec.json.encode(Tick())
_PERIOD_S = TICK_MS / 1000
_LAST_RECORDS = 2_000


class Ticker:
    """Appends a tick to every control partition, each `TICK_MS`."""

    def __init__(self, connection: Connection) -> None:
        self.partitions: Mapping[str, int] = {}
        """Control topic -> how many partitions it has; replaced, never changed, by whoever knows better."""
        self._trouble = Trouble(log, "ticks arrive again")
        self._producer = perishable(connection, 2 * TICK_MS)

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
        for topic, count in self.partitions.items():
            for partition in range(count):
                try:
                    self._producer.produce(topic, _TICK, partition=partition, on_delivery=self._delivered)
                except KafkaException as error:  # the topic has fewer partitions by now
                    self._trouble.began(f"cannot send ticks to {topic}: {error.args[0].str()}")
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self._trouble.ended()
        else:
            self._trouble.began(f"ticks do not arrive in {message.topic()}: {error.str()}")


def newest_tick_ms(connection: Connection, patience_s: float = 10.0) -> int | None:
    """Return the log time of the newest tick, epoch ms; None if there is none among the last records.

    It is looked for in one partition of the queues topic, whose records are few.

    Raises:
        NotReachable: no broker answered within `patience_s` seconds.
    """
    topic = connection.topics.queues
    consumer = connection.consumer(**{"enable.partition.eof": True, "log_level": 0})
    try:
        first, after = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=patience_s)
        consumer.assign([TopicPartition(topic, 0, max(first, after - _LAST_RECORDS))])
        newest = None
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error() is not None:
                return newest
            if message.value() == _TICK:
                newest = message.timestamp()[1]
        raise NotReachable(f"{topic} could not be read within {patience_s:g} s at {connection.bootstrap}")
    except KafkaException as error:
        raise NotReachable(f"{topic} cannot be read at {connection.bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()


def perishable(connection: Connection, timeout_ms: int) -> Producer:
    """Make a producer of what is true now and worth nothing later.

    What a broker did not take within `timeout_ms` is dropped, so that its return is not greeted with all that it
    missed.  An idempotent producer numbers its records and must recover from each one that it drops; ticks and routes
    may come twice, so this one does not number them.  It has one request in flight: that keeps routes in order, and a
    broker that hangs, and goes on, does not find a heap of ticks.
    """
    return connection.producer(
        **{
            "enable.idempotence": False,
            "message.timeout.ms": timeout_ms,
            "max.in.flight.requests.per.connection": 1,
            "message.max.bytes": MAX_RECORD_BYTES,
            "reconnect.backoff.max.ms": 1_000,
            "log_level": 0,  # the troubles are told where they are met, once
            "error_cb": lambda _: None,
        }
    )


def next_due_s(due_s: float, now_s: float, period_s: float) -> float:
    """Return the first time after `now_s` on the grid of `period_s` that `due_s` lies on.

    After a suspension the missed ones are left out.

    >>> next_due_s(10.0, 10.2, 1.0), next_due_s(10.0, 3_610.5, 1.0)
    (11.0, 3611.0)
    """
    return due_s + period_s * max(math.floor((now_s - due_s) / period_s) + 1, 1)
