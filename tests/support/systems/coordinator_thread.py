"""A coordinator without Spark: the real machine on a real broker, one thread, for tests of what talks to it."""

import gc
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from confluent_kafka import OFFSET_BEGINNING, TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, close_producer
from wakeroll.keys import key_to_sign, new_signer
from wakeroll.topic_partitions import learn_partitions
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.decisions import AnyDecision, recipient_of
from wakeroll_model.events import (
    ACCEPTED,
    AnyEvent,
    Arrival,
    Commit,
    Configure,
    Event,
    Heartbeat,
    Pull,
    Route,
    RoutedQueue,
    Tick,
)
from wakeroll_model.group import Group
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record, kind_of_topic, read_event
from wakeroll_model.replay import encode_decision
from wakeroll_model.resharding import split
from wakeroll_model.retry_topics import DELAYS_S, retry_topic_of
from wakeroll_model.shard import Shard
from wakeroll_model.signing import DEV_KEYS, Keys, Signer
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker

TICK_S = 0.25
"""How often it ticks: with ten ticks per second, an idle plane takes twice as much of a core as with four."""
PATIENCE_S = 120.0


class Coordinator(threading.Thread):
    """Reads the control topics, runs the shards, writes the inbox; the observer's ticks and routes come from it too."""

    def __init__(self, connection: Connection, keys: Keys = DEV_KEYS, *, observes: bool = True) -> None:
        """Prepare; `observes` is False if an observer appends ticks and routes."""
        super().__init__(name="coordinator", daemon=True)
        self.connection = connection
        self._observes = observes
        self._keys = keys
        self._ticker = new_signer(key_to_sign(keys, "observer"))
        self._reporter = new_signer(key_to_sign(keys, "observer"))  # of the tests' own thread: a signer counts
        self.heard: list[AnyEvent] = []
        """All events so far, ticks left out."""
        self.decided: list[AnyDecision] = []
        """All decisions so far."""
        self._partitions = CONTROL_PARTITIONS
        self._wanted = CONTROL_PARTITIONS
        self.positions: dict[tuple[str, int], int] = {}
        """Old partition -> first offset that the present number decides; empty if the number never changed."""
        self.begun: dict[tuple[str, int], bytes] = {}
        """Partition -> the state with which its shard began then."""
        self._has_grown = threading.Event()
        self._shards = {
            (topic, partition): Shard(topic, partition, CONTROL_PARTITIONS, signatures=keys)
            for topic in connection.topics.control
            for partition in range(CONTROL_PARTITIONS)
        }
        self._producer = connection.producer()
        self._consumer = connection.consumer()
        self._consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for topic, partition in self._shards])
        self._admin = connection.admin()
        self._stopping = threading.Event()
        self._routed: set[str] = set()

    def run(self) -> None:
        """Tick and decide until `stop`."""
        ticked = 0.0
        while not self._stopping.is_set():
            if self._observes and time.monotonic() - ticked > TICK_S:
                ticked = time.monotonic()
                self.everywhere(Tick(), self._ticker)
            if self._wanted != self._partitions:
                self._grow()
            record = self._next()
            if record is not None:
                self._apply(record)
            self._producer.poll(0)
        self._consumer.close()
        close_producer(self._producer, 1)
        del self._admin

    def stop(self) -> None:
        """End, having written all that was decided."""
        self._stopping.set()
        self.join()

    def replace_producer(self) -> None:
        """Publish with a new client of Kafka, as `wakeroll run` does after it has ended because of a deleted topic."""
        self._producer = self.connection.producer()

    def grow(self, partitions: int) -> dict[tuple[str, int], int]:
        """Raise the number of partitions, as `wakeroll reshard` does; return where the old logs change hands."""
        self._has_grown.clear()
        self._wanted = partitions
        assert self._has_grown.wait(PATIENCE_S)
        return self.positions

    def everywhere(self, event: Event, signer: Signer | None = None) -> None:
        """Append an event to every partition where it may stand, without a key, as the observer does."""
        signer = signer or new_signer(key_to_sign(self._keys, "observer"))
        for topic, partition in self._shards:
            if isinstance(event, ACCEPTED[kind_of_topic(topic)]):
                value = signer.sign(topic, partition, None, msgspec.json.encode(event), end=0)
                self._producer.produce(topic, value, partition=partition)

    def configure(self, group_id: str, **settings: object) -> None:
        """Change a group's settings."""
        value = msgspec.json.encode(Configure(group_id=group_id, **settings))
        topic, key = self.connection.topics.groups, group_id.encode()
        home = partition_of(key, self._partitions)
        signer = new_signer(key_to_sign(self._keys, "operator"))
        self._producer.produce(topic, signer.sign(topic, home, key, value, end=0), key=key, partition=home)

    def report(self, arrival: Arrival) -> None:
        """Tell of the end of a queue, signed as the observer does; unsigned, it would count as a hint."""
        topic, key = self.connection.topics.queues, arrival.queue.key.encode()
        home = partition_of(key, self._partitions)
        value = self._reporter.sign(topic, home, key, msgspec.json.encode(arrival), end=0)
        self._producer.produce(topic, value, key=key, partition=home)
        self._producer.flush(10)

    def tell(self, client_id: str, value: bytes) -> None:
        """Put anything into a client's inbox."""
        self._producer.produce(self.connection.topics.inbox, value, key=client_id.encode())
        self._producer.flush(10)

    def topic(self, partitions: int, name: str | None = None, *, is_pulled: bool = True) -> str:
        """Make a topic of messages and tell the route to it; return its name.

        `is_pulled`: somebody has pulled each of its queues already, so that pulls are held.
        """
        name = name or f"orders-{uuid.uuid4().hex[:6]}"
        # Some messages have timestamps of long ago; the broker would delete them when it looks, every five minutes.
        kept = {"retention.ms": "-1"}
        self._admin.create_topics([NewTopic(name, partitions, 1, config=kept)])[name].result(PATIENCE_S)
        queues = self.announce(name, partitions)
        for queue in queues if is_pulled else []:
            self._pull(queue)
        return name

    def announce(self, name: str, partitions: int) -> list[Queue]:
        """Tell the route to a topic, which may be made later; return its queues."""
        queues = [RoutedQueue(topic=name, broker="", queue_id=number) for number in range(partitions)]
        self.everywhere(Route(topic=name, queues=queues, version="1"))
        self._routed.add(name)
        return [routed.queue for routed in queues]

    def produce(self, topic: str, partition: int, count: int) -> None:
        """Append messages to one partition."""
        for number in range(count):
            self._producer.produce(topic, str(number).encode(), partition=partition)
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0

    def beats(self, client_id: str) -> list[Heartbeat]:
        """Return the heartbeats of a client so far."""
        return [event for event in tuple(self.heard) if isinstance(event, Heartbeat) and event.client_id == client_id]

    def commits(self, client_id: str) -> list[Commit]:
        """Return the commits of a client so far."""
        return [event for event in tuple(self.heard) if isinstance(event, Commit) and event.client_id == client_id]

    @property
    def levels(self) -> dict[str, int]:
        """Shard -> the level at which it decides."""
        return {shard.name: shard.level for shard in self._shards.values()}

    def members(self, group_id: str) -> list[str]:
        """Return who is in a group, oldest first."""
        group = self._group(group_id)
        return [] if group is None else list(group.members)

    def owners(self, group_id: str) -> dict[Queue, str]:
        """Return who owns which queue of a group."""
        group = self._group(group_id)
        return {} if group is None else dict(sorted(group.owners.items()))

    def offsets(self, group_id: str, topic: str) -> dict[int, int]:
        """Return how far a group is on record in a topic: queue number -> the next message to consume."""
        group = self._group(group_id)
        known = {} if group is None else dict(group.offsets)
        return {queue.queue_id: offset for queue, offset in sorted(known.items()) if queue.topic == topic}

    def offsets_of(self, group_id: str, topic: str) -> dict[Queue, int]:
        """Return how far a group is on record in a topic: queue or slice -> the next message to consume."""
        group = self._group(group_id)
        known = {} if group is None else dict(group.offsets)
        return {queue: offset for queue, offset in sorted(known.items()) if queue.topic == topic}

    def pulls(self, queue: Queue) -> int:
        """Return how many pulls of a queue are held by other groups than that of the strangers."""
        place = self.connection.topics.queues, partition_of(queue.key.encode(), self._partitions)
        held = self._shards[place].queue(queue.key)
        return 0 if held is None else sum(hold.group_id != "strangers" for hold in list(held.holds.values()))

    def _route_retries(self, beat: Heartbeat) -> None:
        """Tell the route to a retry topic that a client made, as the observer does when it is subscribed."""
        name = retry_topic_of(beat.group_id)
        if name not in self._routed and any(wanted.topic == name for wanted in beat.subscriptions):
            self._routed.add(name)
            queues = [RoutedQueue(topic=name, broker="", queue_id=number) for number in range(len(DELAYS_S))]
            self.everywhere(Route(topic=name, queues=queues, version="1"))

    def _pull(self, queue: Queue) -> None:
        """Let a stranger pull a queue, once."""
        life = uuid.uuid4().hex
        names = {"group_id": "strangers", "client_id": life, "instance_id": life}
        pull = Pull(request_id=f"{life}:1", queue=queue, from_offset=0, **names)
        self._producer.produce(self.connection.topics.queues, msgspec.json.encode(pull), key=queue.key.encode())

    def _group(self, group_id: str) -> Group | None:
        home = partition_of(group_id.encode(), self._partitions)
        return self._shards[self.connection.topics.groups, home].group(group_id)

    def _next(self) -> Record | None:
        message = self._consumer.poll(0.02)
        if message is None or message.error() is not None:
            return None
        place = message.topic(), message.partition()
        return Record(*place, message.offset(), message.timestamp()[1], message.key(), message.value())

    def _grow(self) -> None:
        """Add partitions, decide what the old number still decides, and divide the shards."""
        topics, cluster = self.connection.topics, Cluster(self.connection)
        concerned = (*topics.control, topics.decisions)
        assert set(cluster.grow(concerned, self._wanted).values()) == {None}
        wait_until(
            lambda: all(
                len(racks) == self._wanted and None not in racks.values() for racks in cluster.racks(concerned).values()
            ),
            "the new partitions have leaders",
        )
        ends = {place: end for place, (_, end) in cluster.all_offsets(self._shards).items()}
        while any(shard.offset + 1 < ends[place] for place, shard in self._shards.items()):
            record = self._next()
            if record is not None and record.offset < ends[record.topic, record.partition]:
                self._apply(record)
        parts = {
            (topic, number): body
            for (topic, partition), shard in self._shards.items()
            for number, body in split(
                topic, partition, shard.body(), self._wanted, offset=ends[topic, partition]
            ).items()
        }
        self.positions, self.begun, self._partitions = ends, parts, self._wanted
        self._shards = {
            place: Shard(*place, self._wanted, body, signatures=self._keys) for place, body in parts.items()
        }
        self._consumer.assign([TopicPartition(*place, ends.get(place, 0)) for place in self._shards])
        for topic in topics.control:
            learn_partitions(self._producer, topic)
        self._has_grown.set()

    def _apply(self, record: Record) -> None:
        event = read_event(record, self._partitions)
        if isinstance(event, AnyEvent) and not isinstance(event, Tick):
            self.heard.append(event)
            if self._observes and isinstance(event, Heartbeat):
                self._route_retries(event)
        decisions = self._shards[record.topic, record.partition].apply(record)
        self.decided += decisions
        for decision in decisions:
            if client_id := recipient_of(decision):
                inbox = self.connection.topics.inbox
                self._producer.produce(inbox, encode_decision(decision), key=client_id.encode())


@contextmanager
def coordinating(connection: Connection) -> Iterator[Coordinator]:
    """Create the control topics of a connection, and run a coordinator for them."""
    ensure_topics(connection)
    coordinator = Coordinator(connection)
    coordinator.start()
    try:
        yield coordinator
    finally:
        coordinator.stop()


@contextmanager
def plane_of_its_own(folder: Path) -> Iterator[tuple[EmbeddedBroker, Coordinator]]:
    """A broker that a test may kill, with a coordinator."""
    with EmbeddedBroker(folder) as broker:
        try:
            with coordinating(Connection(broker.bootstrap)) as coordinator:
                yield broker, coordinator
        finally:
            gc.collect()  # closes admin clients, which have no method for it and would look for this broker for ever
