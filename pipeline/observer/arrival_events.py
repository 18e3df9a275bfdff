"""Arrivals: who waits for messages of a queue learns from the log that there are some."""

import logging
import threading
import time
import uuid
from collections.abc import Sequence
from functools import partial

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from model.events import Arrival
from model.partitioner import partition_of
from model.queue import Queue
from model.signing import Keys
from pipeline.failure_log import Trouble
from pipeline.kafka.topic_admin import Cluster, Racks
from pipeline.observer import end_offsets
from pipeline.observer.end_offsets import ASK_MS, Arrived, EndBook, Pulled, Where
from pipeline.observer.signed_producers import ENDS_MS, SignedProducer
from pipeline.observer.ticks import next_due_s
from pipeline.observer.topic_follower import Follower
from wakeroll.connection import Connection, is_legal
from wakeroll.errors import NotReachable

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often the brokers are asked who leads which queue."""
_ANSWER_S = 1.0
"""A broker that hangs holds up what the others have to tell for so long."""
_TIMEOUT_MS = 1_000
_FLUSH_S = 0.5


class Announcer:
    """Asks for the ends of queues, and appends an arrival for each that the log does not know, or should hear again.

    The queues are those of topics that are subscribed, or named by a pull.
    """

    def __init__(self, connection: Connection, keys: Keys, stop: threading.Event) -> None:
        """Make the clients; nothing is asked yet.

        Raises:
            InvalidUsage: Kafka's client does not take the settings, or there is no key of an observer.
        """
        self.subscribed: Sequence[str] = ()
        """Topics of live groups; replaced, never changed, by whoever knows better."""
        self._names = connection.topics
        self._cluster = Cluster(connection, patience_s=_ANSWER_S, stop=stop)
        self._book = EndBook(observer=uuid.uuid4().hex)
        self._led: dict[str, list[int]] = {}
        """Topic -> its queues with a leader; for the end of another one Kafka's client waits in vain."""
        self._mute: set[Where] = set()
        """Queues whose end nobody told when it was asked for last."""
        self._look_s = time.monotonic()
        self._failures = 0
        """Of reading ends, in a row, while the brokers say who leads what."""
        self._follower: Follower[Pulled | Arrived] = Follower(connection, connection.topics.queues, end_offsets.read)
        self._producer = SignedProducer(connection, keys, _TIMEOUT_MS)
        self._shards = 0
        """Partitions of the topic where arrivals go."""
        self._ends_s = 0.0
        self._silence = Trouble(log, "the ends of queues are told again")
        self._gap = Trouble(log, "the ends of all queues are told again")
        self._delivery = Trouble(log, "arrivals get into the log again")

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set; set it on an error."""
        due_s = time.monotonic()
        try:
            while not stop.is_set():
                self._round(time.monotonic(), stop)
                due_s = next_due_s(due_s, time.monotonic(), ASK_MS / 1_000)
                self._listen(due_s)
        finally:
            stop.set()
            self._producer.flush(_FLUSH_S)
            self._follower.close()

    def _round(self, now_s: float, stop: threading.Event) -> None:
        """Look at the topics if it is time to, and tell what is news."""
        topics = self._topics(_ms(now_s))
        if now_s >= self._look_s or self._failures or not self._led.keys() >= topics:
            self._look_s = next_due_s(self._look_s, now_s, _LOOK_S)
            try:
                self._look(topics, _ms(now_s))
            except NotReachable:  # the router asks the same brokers the same, and says so
                self._failures = 0
                return
        try:
            self._tell(_ms(now_s))
        except NotReachable as error:
            self._failures += 1
            if self._failures > 1 and not stop.is_set():  # the brokers answer, but for this
                self._silence.began(f"the ends of queues are not told: {error}; trying again")
        else:
            self._failures = 0
            self._silence.ended()

    def _topics(self, now_ms: int) -> set[str]:
        """Return the topics whose queues are looked after."""
        pulled = (topic for topic in self._book.pulled(now_ms) if is_legal(topic) and topic not in self._names.all)
        return {*self.subscribed, *pulled}

    def _look(self, topics: set[str], now_ms: int) -> None:
        """Find out which queues there are and have a leader, and read the log of their arrivals."""
        self._book.keep(topics, now_ms)
        found = {
            topic: Racks() if isinstance(racks, KafkaError) else racks
            for topic, racks in self._cluster.racks((self._names.queues, *sorted(topics))).items()
        }
        if racks := found.pop(self._names.queues):
            self._follower.follow(len(racks), self._cluster)
            self._learn_ends(racks)
        else:  # as the router says
            found = {}
        self._led = {
            topic: [queue_id for queue_id, rack in racks.items() if rack is not None] for topic, racks in found.items()
        }
        leaders = {(topic, queue_id): rack for topic, racks in found.items() for queue_id, rack in racks.items()}
        self._mute = {where for where, rack in leaders.items() if rack is None or where in self._mute}

    def _learn_ends(self, racks: Racks) -> None:
        """Ask where the partitions of arrivals end, if one is new or it is time to."""
        led = [partition for partition, rack in racks.items() if rack is not None]
        known = all(self._producer.knows(self._names.queues, partition) for partition in led)
        now_s = time.monotonic()
        if not known or now_s - self._ends_s >= ENDS_MS / 1_000:
            self._producer.learn(self._cluster.ends((self._names.queues, partition) for partition in led))
            self._ends_s = now_s
        self._shards = len(racks)

    def _tell(self, now_ms: int) -> None:
        """Ask for the ends that are due, in one request, and append what is news."""
        asked = {(topic, queue_id) for topic in self._book.take_due(self._led, now_ms) for queue_id in self._led[topic]}
        told = self._cluster.ends(asked)
        self._mute = (self._mute | asked) - told.keys()
        if self._mute:
            topic, queue_id = min(self._mute)
            self._gap.began(f"nobody tells where {topic}-{queue_id} ends, nor {len(self._mute) - 1} other queues")
        else:
            self._gap.ended()
        for arrival in self._book.take_news(told, now_ms):
            self._send(arrival)

    def _listen(self, until_s: float) -> None:
        """Hear the log until the next ends are due."""
        while (left_s := until_s - time.monotonic()) > 0:
            for said in self._follower.hear(left_s):
                self._book.hear(said, _ms(time.monotonic()))
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
        except BufferError:  # more than a producer holds; the next read goes on
            self._book.unsaid(arrival.queue, _ms(time.monotonic()))
        except KafkaException as error:
            self._delivery.began(f"cannot send the arrival in {arrival.queue}: {error.args[0].str()}")
            self._book.unsaid(arrival.queue, _ms(time.monotonic()))

    def _delivered(self, queue: Queue, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self._delivery.ended()
        else:
            self._delivery.began(f"the arrival in {queue} does not get into the log: {error.str()}")
            self._book.unsaid(queue, _ms(time.monotonic()))


def _ms(clock_s: float) -> int:
    return int(clock_s * 1_000)
