"""Messages for every queue of a topic in turn, at a steady rate."""

import threading
import time

from confluent_kafka import KafkaError, Message

from wakeroll.connection import Connection

_FLUSH_S = 30.0


class SteadyTraffic:
    """Produces to the queues of a topic in turn, during a `with` block. Late messages are produced at once."""

    def __init__(self, connection: Connection, topic: str, queues: int, per_second: int) -> None:
        """Prepare; `per_second` is the number of messages of all queues together."""
        self.stored: set[tuple[int, int]] = set()
        """(queue_id, offset) of every message that the broker acknowledged."""
        self._connection = connection
        self._topic = topic
        self._queues = queues
        self._pause_s = 1 / per_second
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"traffic-{topic}", daemon=True)

    def __enter__(self) -> "SteadyTraffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop, and wait until the broker has acknowledged all messages. A second call does nothing."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        producer = self._connection.producer(log_level=0)
        due, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, due - time.monotonic())):
            producer.produce(self._topic, b"%d" % number, partition=number % self._queues, on_delivery=self._delivered)
            producer.poll(0)
            number += 1
            due += self._pause_s
        producer.flush(_FLUSH_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.stored.add((partition, offset))
