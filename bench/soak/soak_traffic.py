"""The messages of a soak: a steady rate for all queues in turn, also for queues that are added meanwhile."""

import threading
import time
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message

from bench.soak.soak_judge import QueueId
from wakeroll.connection import Connection

_FLUSH_S = 60.0
_FULL_S = 0.1
_REFRESH_MS = 5_000


class SoakTraffic(threading.Thread):
    """Produces until it is closed; late messages are produced at once. Nobody else produces to these topics."""

    def __init__(self, connection: Connection, queues: Sequence[QueueId], per_second: int) -> None:
        """Prepare; `per_second` is the number of messages of all queues together."""
        super().__init__(name="soak-traffic", daemon=True)
        self.stored = 0
        """Messages that the broker acknowledged."""
        self.failed = 0
        """Messages that the broker did not acknowledge in time, and may have stored."""
        self._connection = connection
        self._queues = list(queues)
        self._pause_s = 1 / per_second
        self._ended = threading.Event()

    def add(self, queues: Sequence[QueueId]) -> None:
        """Produce to further queues too."""
        self._queues = [*self._queues, *queues]

    def run(self) -> None:
        """Produce until `close`."""
        producer = self._connection.producer(**{"topic.metadata.refresh.interval.ms": _REFRESH_MS, "log_level": 0})
        due_s, number = time.monotonic(), 0
        while not self._ended.wait(max(0.0, due_s - time.monotonic())):
            queues = self._queues
            topic, queue_id = queues[number % len(queues)]
            try:
                producer.produce(topic, b"%d" % number, partition=queue_id, on_delivery=self._delivered)
            except BufferError:  # the broker is down
                producer.poll(_FULL_S)
                continue
            except KafkaException as problem:
                if problem.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                # The partition is new, and the producer does not know it yet: the next queue has its turn.
            producer.poll(0)
            number += 1
            due_s += self._pause_s
        producer.flush(_FLUSH_S)

    def close(self) -> None:
        """Stop, and wait until the broker has acknowledged all messages. A second call does nothing."""
        self._ended.set()
        self.join()

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.stored += 1
        else:
            self.failed += 1
