"""Arrivals: reports in the log that a queue has grown, by which held pulls are woken."""

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from functools import partial

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from wakeroll.connection import Connection, is_legal
from wakeroll.errors import NotReachable
from wakeroll_model.events import Arrival
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.signing import Keys
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster, Racks
from wakeroll_pipeline.metrics.observer_metrics import FULL, ObserverMetrics
from wakeroll_pipeline.observer import end_offsets
from wakeroll_pipeline.observer.end_offsets import ASK_MS, Arrived, EndBook, Pulled, Where
from wakeroll_pipeline.observer.signed_producers import ENDS_MS, SignedProducer
from wakeroll_pipeline.observer.ticks import next_due_s
from wakeroll_pipeline.observer.topic_follower import Follower

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""Interval of the queries for the leaders of queues (s)."""
_ANSWER_S = 1.0
"""Longest time that a broker without answer delays the arrivals of others (s)."""
_TIMEOUT_MS = 1_000
_FLUSH_S = 0.5


class Announcer:
    """Queries the ends of queues, and appends an arrival for each end that is new to the log or must be repeated.

    The queues are those of subscribed topics, and of topics with pulls.
    """

    def __init__(self, connection: Connection, keys: Keys, stop: threading.Event, metrics: ObserverMetrics) -> None:
        """Create the clients; no query is sent yet.

        Raises:
            InvalidUsage: Kafka's client rejects the settings, or there is no observer key.
        """
        self.subscribed: Sequence[str] = ()
        """Topics of live groups; the router replaces the sequence, but never changes it."""
        self._names = connection.topics
        self._metrics = metrics
        self._cluster = Cluster(connection, patience_s=_ANSWER_S, stop=stop)
        self._book = EndBook(observer=uuid.uuid4().hex)
        self._led: dict[str, list[int]] = {}
        """Topic -> its queues with a leader. For queues without one, Kafka's client would wait until the timeout."""
        self._mute: set[Where] = set()
        """Queues whose end the last query did not return."""
        self._look_s = time.monotonic()
        self._failures = 0
        """Number of consecutive failures to read ends while the brokers return the leaders."""
        self._follower: Follower[Pulled | Arrived] = Follower(connection, connection.topics.queues, end_offsets.read)
        self._producer = SignedProducer(connection, keys, _TIMEOUT_MS)
        self._shards = 0
        """Number of partitions of the queues topic."""
        self._ends_s = 0.0
        self._silence = Trouble(log, "the end offsets of queues can be read again")
        self._gap = Trouble(log, "the end offsets of all queues can be read again")
        self._delivery = Trouble(log, "arrivals are delivered again")

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; an error sets it too."""
        due_s = time.monotonic()
        try:
            while not stop.is_set():
                self._metrics.health.beat("announcer")
                self._round(time.monotonic(), stop)
                due_s = next_due_s(due_s, time.monotonic(), ASK_MS / 1_000)
                self._listen(due_s)
        finally:
            stop.set()
            self._producer.flush(_FLUSH_S)
            self._follower.close()

    def _round(self, now_s: float, stop: threading.Event) -> None:
        """Query the topics if a query is due, and append new arrivals."""
        topics = self._topics(_ms(now_s))
        if now_s >= self._look_s or self._failures or not self._led.keys() >= topics:
            self._look_s = next_due_s(self._look_s, now_s, _LOOK_S)
            try:
                self._look(topics, _ms(now_s))
            except NotReachable:  # the router sends the same query to the same brokers, and logs the failure
                self._failures = 0
                return
        try:
            self._report_ends(_ms(now_s))
        except NotReachable as error:
            self._failures += 1
            if self._failures > 1 and not stop.is_set():  # the brokers answer other queries
                self._silence.began(f"cannot read the end offsets of queues: {error}; retrying")
        else:
            self._failures = 0
            self._silence.ended()

    def _topics(self, now_ms: int) -> set[str]:
        """Return the topics whose queues are observed."""
        pulled = (topic for topic in self._book.pulled(now_ms) if is_legal(topic) and topic not in self._names.all)
        return {*self.subscribed, *pulled}

    def _look(self, topics: set[str], now_ms: int) -> None:
        """Find the queues that have a leader, and start to read the log of their arrivals."""
        self._book.keep(topics, now_ms)
        found = {
            topic: Racks() if isinstance(racks, KafkaError) else racks
            for topic, racks in self._cluster.racks((self._names.queues, *sorted(topics))).items()
        }
        if racks := found.pop(self._names.queues):
            self._follower.follow(len(racks), self._cluster)
            self._learn_ends(racks)
        else:  # the router logs that the topic is missing
            found = {}
        self._led = {
            topic: [queue_id for queue_id, rack in racks.items() if rack is not None] for topic, racks in found.items()
        }
        self._metrics.follows_queues(sum(len(queues) for queues in self._led.values()))
        leaders = {(topic, queue_id): rack for topic, racks in found.items() for queue_id, rack in racks.items()}
        self._mute = {where for where, rack in leaders.items() if rack is None or where in self._mute}

    def _learn_ends(self, racks: Racks) -> None:
        """Query the ends of the queues topic's partitions, if a partition is new or a query is due."""
        led = [partition for partition, rack in racks.items() if rack is not None]
        known = all(self._producer.knows(self._names.queues, partition) for partition in led)
        now_s = time.monotonic()
        if not known or now_s - self._ends_s >= ENDS_MS / 1_000:
            self._producer.learn(self._cluster.ends((self._names.queues, partition) for partition in led))
            self._ends_s = now_s
        self._shards = len(racks)

    def _report_ends(self, now_ms: int) -> None:
        """Query the ends that are due, in one request, and append new arrivals."""
        asked = {(topic, queue_id) for topic in self._book.take_due(self._led, now_ms) for queue_id in self._led[topic]}
        ends = self._cluster.ends(asked)
        self._mute = (self._mute | asked) - ends.keys()
        self._metrics.read_ends(len(ends), len(self._mute))
        if self._mute:
            topic, queue_id = min(self._mute)
            self._gap.began(f"cannot read end offsets; queues: {len(self._mute)}, the first: {topic}-{queue_id}")
        else:
            self._gap.ended()
        for arrival in self._book.take_news(ends, now_ms):
            self._send(arrival)

    def _listen(self, until_s: float) -> None:
        """Read the log until the next ends are due."""
        while (left_s := until_s - time.monotonic()) > 0:
            for record in self._follower.receive(left_s):
                self._book.receive(record, _ms(time.monotonic()))
            self._producer.poll()

    def _send(self, arrival: Arrival) -> None:
        key = arrival.queue.key.encode()
        try:
            self._producer.produce(
                self._names.queues,
                msgspec.json.encode(arrival),
                partition_of(key, self._shards),
                key=key,
                on_delivery=partial(self._delivered, arrival.queue),
            )
        except BufferError:  # the producer's queue is full; the next read sends the rest
            self._metrics.failed("arrival", FULL)
            self._book.mark_lost(arrival.queue, _ms(time.monotonic()))
        except KafkaException as error:
            self._metrics.failed("arrival", error.args[0].name())
            self._delivery.began(f"cannot send the arrival in {arrival.queue}: {error.args[0].str()}")
            self._book.mark_lost(arrival.queue, _ms(time.monotonic()))

    def _delivered(self, queue: Queue, error: KafkaError | None, message: Message) -> None:
        self._metrics.delivered("arrival", message, error)
        if error is None:
            self._delivery.ended()
        else:
            self._delivery.began(f"the arrival in {queue} was not delivered: {error.str()}")
            self._book.mark_lost(queue, _ms(time.monotonic()))


def _ms(clock_s: float) -> int:
    return int(clock_s * 1_000)
