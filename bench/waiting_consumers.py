"""Waiting consumers: many that one process simulates with pulls, and real ones that wait in `fetch`."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import msgspec
from confluent_kafka import KafkaError, Message

from bench.decision_reader import Answer, Ears, Listener
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll.epoch_ms import now_ms
from wakeroll_model.events import Arrival, Event, Pull
from wakeroll_model.queue import Queue

GROUP = "crowd"
FLUSH_S = 30.0
HANDLERS = "handlers"
"""Group of the real consumers."""
WAIT_S = 20.0
_POLL_S = 0.2

_encode = msgspec.json.Encoder().encode


class Crowd:
    """So many clients, each waiting on one queue of a topic.

    Who is woken asks again at once, from behind what Kafka has by then: a consumer would have read that.
    """

    def __init__(self, connection: Connection, topic: str, clients: int, queues: int, name: str = "crowd") -> None:
        """Prepare; clients of another `name` are others."""
        self._connection = connection
        self._producer = connection.producer(log_level=0)
        self._topic = topic
        self._queues = queues
        self._pulled = {f"{name}-{number}": 0 for number in range(clients)}
        """Client -> number of its last pull."""
        self._queue_of = {client: Queue(topic, "", i % queues) for i, client in enumerate(self._pulled)}
        self._ends: dict[Queue, int] = {}
        """How far each queue reaches."""
        self._produced = 0

    def run(self, ears: Ears, per_second: int, seconds: float) -> list[Answer]:
        """Wait, and be woken by so many messages a second, for so many seconds; return all answers as they came."""
        answers: list[Answer] = []
        for client_id in self._pulled:
            self._pull(client_id, 0)
        due_s = time.monotonic()
        end_s = due_s + seconds
        while (now_s := time.monotonic()) < end_s:
            while due_s <= now_s:  # what was late is made up for
                self._produce()
                due_s += 1 / per_second
            for answer in ears.wakes(max(due_s - time.monotonic(), 0)):
                if answer.client_id in self._pulled:
                    answers.append(answer)
                    queue = self._queue_of[answer.client_id]
                    self._pull(answer.client_id, max(answer.next_offset, self._ends.get(queue, 0)))
            self._producer.poll(0)
        self._producer.flush(FLUSH_S)
        return answers

    def _produce(self) -> None:
        """Append a message to the next queue; once Kafka has it, its arrival is told."""
        queue_id = self._produced % self._queues
        self._produced += 1
        text = f"message {self._produced}"
        self._producer.produce(self._topic, text, partition=queue_id, on_delivery=self._tell_arrival)

    def _tell_arrival(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            partition, offset = message.partition(), message.offset()
            assert partition is not None, "a delivered message has a partition"
            assert offset is not None, "a delivered message has an offset"
            queue = Queue(self._topic, "", partition)
            self._ends[queue] = offset + 1
            self._send(Arrival(queue=queue, next_offset=offset + 1), queue)

    def _pull(self, client_id: str, from_offset: int) -> None:
        self._pulled[client_id] += 1
        queue, life = self._queue_of[client_id], f"life-of-{client_id}"
        pull = Pull(
            request_id=f"{life}:{self._pulled[client_id]}",
            group_id=GROUP,
            client_id=client_id,
            instance_id=life,
            queue=queue,
            from_offset=from_offset,
        )
        self._send(pull, queue)

    def _send(self, event: Event, queue: Queue) -> None:
        self._producer.produce(self._connection.topics.queues, _encode(event), key=queue.key)


class Handled(NamedTuple):
    """A message that has reached a handler."""

    at_ms: int
    """When it was produced, epoch ms, by this machine's clock."""
    latency_ms: int


class Handlers:
    """So many threads, each with a consumer that fetches from the end of a queue on, while the `with` lasts.

    For comparison, one more thread polls Kafka.
    """

    def __init__(self, connection: Connection, topic: str, queues: int, consumers: int) -> None:
        self._connection = connection
        self._topic = topic
        self._queues = queues
        self._consumers = consumers
        self._ended = threading.Event()
        self._threads = ThreadPoolExecutor(consumers + 1)
        self._fetched: list[Future[list[Handled]]] = []
        self._polled: Future[list[Handled]] | None = None

    def __enter__(self) -> "Handlers":
        """Begin to wait."""
        self._fetched = [self._threads.submit(self._fetch, number) for number in range(self._consumers)]
        self._polled = self._threads.submit(self._poll)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop waiting."""
        self._ended.set()
        self._threads.shutdown()

    @property
    def fetched(self) -> list[Handled]:
        """What the consumers' handlers got; once the `with` has ended."""
        return [handled for one in self._fetched for handled in one.result()]

    @property
    def polled(self) -> list[Handled]:
        """What polling Kafka got; once the `with` has ended."""
        assert self._polled is not None, "it was entered"
        return self._polled.result()

    def _fetch(self, number: int) -> list[Handled]:
        names = self._connection.topics
        handled: list[Handled] = []
        bootstrap, login = self._connection.bootstrap, self._connection.config
        with Consumer(HANDLERS, [self._topic], bootstrap, prefix=names.prefix, kafka_config=login) as consumer:
            offset = 0
            while not self._ended.is_set():
                messages, offset = consumer.fetch((self._topic, number), offset, WAIT_S)
                now = now_ms()
                handled += [Handled(at_ms, now - at_ms) for at_ms in (message.timestamp()[1] for message in messages)]
        return handled

    def _poll(self) -> list[Handled]:
        listener = Listener(self._connection, self._topic, self._queues)
        handled: list[Handled] = []
        try:
            while not self._ended.is_set():
                read = listener.read(_POLL_S)
                now = now_ms()
                handled += [Handled(at_ms, now - at_ms) for _, _, at_ms in read]
        finally:
            listener.close()
        return handled
