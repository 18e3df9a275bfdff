"""The traffic of the demo: messages at a steady rate, and heartbeats that measure the latency of decisions."""

import threading
import time
import uuid

import msgspec
from confluent_kafka import KafkaError, Message

from wakeroll.connection import Connection
from wakeroll.keys import key_to_sign
from wakeroll.operator_requests import append
from wakeroll_model.events import Configure, Heartbeat, Subscription
from wakeroll_model.signing import DEV_KEYS, Keys

PROBE_GROUP = "latency-probe"
_PATIENCE_S = 30.0


class Traffic(threading.Thread):
    """Produces numbered messages at a steady rate until it is stopped."""

    def __init__(self, connection: Connection, topic: str, per_second: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self.produced: set[tuple[int, int]] = set()
        """(queue_id, offset) of every message that the broker acknowledged."""
        self._connection = connection
        self._topic = topic
        self._pause_s = 1 / per_second
        self._ended = threading.Event()

    def run(self) -> None:
        """Produce on schedule, and catch up after a delay."""
        producer = self._connection.producer(log_level=0)
        due, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            producer.produce(self._topic, f"order {number}", key=f"{number}", on_delivery=self._delivered)
            producer.poll(0)
            number += 1
            due += self._pause_s
        producer.flush(30)

    def close(self) -> None:
        """Stop, and wait until the broker has acknowledged all messages."""
        self._ended.set()
        self.join()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.produced.add((partition, offset))


class Probe(threading.Thread):
    """Requests an assignment five times a second, as the only client of its own group.

    Its heartbeats show no epoch, so the coordinator answers each with the assignment: each pair of records gives two
    broker timestamps.
    """

    def __init__(self, connection: Connection, topic: str, keys: Keys = DEV_KEYS) -> None:
        super().__init__(name="probe", daemon=True)
        self._connection = connection
        self._keys = keys
        self._topic = topic
        self._ended = threading.Event()

    def run(self) -> None:
        """Probe until `close`."""
        producer = self._connection.producer(log_level=0)
        configure(self._connection, self._keys, Configure(group_id=PROBE_GROUP, settle_ms=0))
        wanted = [Subscription(topic=self._topic)]
        event = Heartbeat(group_id=PROBE_GROUP, client_id="probe", instance_id=uuid.uuid4().hex, subscriptions=wanted)
        value = msgspec.json.encode(event)
        while not self._ended.wait(0.2):
            producer.produce(self._connection.topics.groups, value, key=PROBE_GROUP)
            producer.poll(0)
        producer.flush(10)

    def close(self) -> None:
        """Stop probing."""
        self._ended.set()
        self.join()


def configure(connection: Connection, keys: Keys, event: Configure) -> None:
    """Append a group's settings, signed, without waiting for the coordinator's decision.

    Raises:
        NotReachable: the broker did not acknowledge them.
    """
    consumer = connection.operators_consumer()
    try:
        append(connection, consumer, event, key_to_sign(keys, "operator"), _PATIENCE_S)
    finally:
        consumer.close()
