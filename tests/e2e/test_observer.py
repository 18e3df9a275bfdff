"""The observer as a process of its own, on a real broker: ticks and routes, through all that happens to both."""

import os
import signal
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Message, TopicPartition
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll.keys import add_key, new_key, read_keys
from wakeroll_model.config import CONTROL_PARTITIONS, TICK_MS
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import Heartbeat, Route, Subscription
from wakeroll_model.records import Record, read_event
from wakeroll_model.shard import Shard
from wakeroll_model.signing import DEV_KEYS, Keys
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.observer.ticks import is_tick, newest_tick

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
OBSERVE = [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", "--bootstrap"]


class Plane:
    """The control topics of one test, its observers, and all that stands in the log of groups."""

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self.name = f"plane-{uuid.uuid4().hex[:6]}"
        self.connection = Connection(broker.bootstrap, topics=Topics(self.name))
        self.observers: list[Child] = []
        self.records: list[Message] = []
        self._folder = folder
        self._environment = os.environ | {"WAKEROLL_KEYS": str(key_file(folder))}
        impatient = {"reconnect.backoff.max.ms": 200, "log_level": 0}
        self._producer = self.connection.producer(**impatient)
        self._admin = self.connection.admin(**impatient)
        self._consumers = [self.connection.consumer(**impatient) for _ in self.connection.topics.control]

    def make_topics(self) -> None:
        """Make the control topics, and read them from now on."""
        ensure_topics(self.connection, patience_s=PATIENCE_S)
        for consumer, topic in zip(self._consumers, self.connection.topics.control, strict=True):
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(CONTROL_PARTITIONS)])

    def observe(self) -> Child:
        """Start one more observer."""
        command = [*OBSERVE, self.connection.bootstrap, "--prefix", self.name]
        log = self._folder / f"observer-{len(self.observers)}.log"
        observer = Child("the observer", command, log=log, env=self._environment, folder=ROOT)
        self.observers.append(observer)
        observer.start()
        return observer

    def topic(self, partitions: int, name: str = "") -> str:
        """Make a topic of messages; return its name."""
        name = name or f"orders-{uuid.uuid4().hex[:6]}"
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(PATIENCE_S)
        return name

    def widen(self, topic: str, partitions: int) -> None:
        """Add partitions to a topic, up to so many."""
        self._admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(PATIENCE_S)

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def produce(self, topic: str, value: bytes, **where: object) -> None:
        """Append a record and wait for its receipt; `where` is a key or a partition."""
        self._producer.produce(topic, value, **where)
        assert self._producer.flush(PATIENCE_S) == 0

    def subscribe(self, *topics: str) -> None:
        """Append a heartbeat."""
        subscriptions = [Subscription(topic=topic) for topic in topics]
        beat = Heartbeat(group_id="billing", client_id="c1", instance_id="1", subscriptions=subscriptions)
        self.produce(self.connection.topics.groups, msgspec.json.encode(beat), key=b"billing")

    def read(self) -> None:
        """Read what the observers sent."""
        for consumer in self._consumers:
            for message in consumer.consume(1_000, 0.02):
                if message.error() is None:
                    self.records.append(message)

    def wait_until(self, done: Callable[[], object], what: str) -> None:
        """Read on until something is so."""
        wait_until(done, what, between=self.read, state=lambda: [observer.log_tail() for observer in self.observers])

    def ticks(self, since_ms: int = 0) -> dict[tuple[str, int], list[int]]:
        """Return the log times of the ticks, by topic and partition."""
        times: dict[tuple[str, int], list[int]] = {
            (topic, partition): []
            for topic in self.connection.topics.control
            for partition in range(CONTROL_PARTITIONS)
        }
        for record in self.records:
            if is_tick(record.value()) and record.timestamp()[1] >= since_ms:
                times[record.topic(), record.partition()].append(record.timestamp()[1])
        return times

    def routes(self, topic: str) -> list[list[Route]]:
        """Return the routes of a topic, by shard."""
        routes: list[list[Route]] = [[] for _ in range(CONTROL_PARTITIONS)]
        for record in self.records:
            if b'"route"' in record.value():
                assert record.key() is None
                route = read_event(record_of(record), CONTROL_PARTITIONS)
                assert isinstance(route, Route)
                if route.topic == topic:
                    routes[record.partition()].append(route)
        return routes

    def wait_for_route(self, topic: str, queues: int, times: int = 1) -> Route:
        """Wait until every shard was told `times` times that a topic has so many queues; return the last route."""

        def told() -> bool:
            return all(
                sum(len(route.queues) == queues for route in shard) >= times and len(shard[-1].queues) == queues
                for shard in self.routes(topic)
            )

        self.wait_until(told, f"{topic} has {queues} queues")
        return self.routes(topic)[0][-1]

    def wait_for_ticks(self, since_ms: int = 0, count: int = 1) -> None:
        """Wait until every control partition has so many ticks since a time of the log."""
        self.wait_until(lambda: all(len(times) >= count for times in self.ticks(since_ms).values()), "there are ticks")

    def newest_ms(self) -> int:
        """Return the log time of the newest record."""
        return max((record.timestamp()[1] for record in self.records), default=0)

    def close(self) -> None:
        """End the observers."""
        for observer in self.observers:
            observer.kill()
        for consumer in self._consumers:
            consumer.close()


def key_file(folder: Path) -> Path:
    """Make a file with an observer's key; return where it is."""
    file = folder / "keys.toml"
    add_key(file, new_key("observer", "obs-1"))
    return file


def most_ticks(times: list[int]) -> float:
    """Return how many ticks there may be between the first and the last of these log times.

    A broker that pauses is given at most two seconds' ticks at once when it goes on: older ones are dropped.
    """
    return (times[-1] - times[0]) / TICK_MS + 4


def record_of(message: Message) -> Record:
    kind, timestamp_ms = message.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    where = (message.topic(), message.partition(), message.offset())
    return Record(*where, timestamp_ms, message.key(), message.value())


@pytest.fixture
def plane(broker, tmp_path) -> Iterator[Plane]:
    """Control topics of the test's own, with one observer."""
    plane = Plane(broker, tmp_path)
    plane.make_topics()
    plane.observe()
    yield plane
    plane.close()


def test_every_control_partition_gets_its_ticks(plane):
    """A shard without ticks stands still: nobody expires, no timer fires."""
    plane.wait_for_ticks(count=3)

    for times in plane.ticks().values():
        assert len(times) <= most_ticks(times)


def test_all_that_it_says_is_signed_with_the_key_of_its_file(plane, tmp_path):
    """A coordinator with that key believes all of it, and one with another key none of it."""
    topic = plane.topic(2)
    plane.produce(topic, b"", partition=1)
    plane.subscribe(topic)
    plane.wait_for_route(topic, 2)
    plane.wait_for_ticks(count=2)
    plane.wait_until(lambda: any(b'"arrival"' in message.value() for message in plane.records), "it tells an end")

    def rules(keys: Keys) -> list[str]:
        """Return the rules that the observer's records break, in shards with these keys."""
        shards: dict[tuple[str, int], Shard] = {}
        broken = []
        for message in plane.records:
            if b'"heartbeat"' not in message.value():
                record = record_of(message)
                where = record.topic, record.partition
                shard = shards.setdefault(where, Shard(*where, CONTROL_PARTITIONS, signatures=keys))
                broken += [one.rule for one in shard.apply(record) if isinstance(one, Rejected)]
        return broken

    assert rules(read_keys(tmp_path / "keys.toml")) == []
    assert newest_tick(plane.connection, read_keys(tmp_path / "keys.toml")).problem == ""
    assert newest_tick(plane.connection, DEV_KEYS).problem.startswith("no key 'obs-1'; a tick requires")
    assert set(rules(DEV_KEYS)) == {"signature"}
    assert len(rules(DEV_KEYS)) == sum(b'"heartbeat"' not in message.value() for message in plane.records)
    assert "WARNING" not in plane.observers[0].log_tail()


def test_a_subscribed_topic_is_routed_to_every_shard_with_its_offsets(plane):
    """A group may live in any shard, and a topic has groups in several."""
    topic = plane.topic(3)
    for number in range(5):
        plane.produce(topic, str(number).encode(), partition=1)

    plane.subscribe(topic)

    route = plane.wait_for_route(topic, 3)
    assert [(queue.queue_id, queue.min_offset, queue.max_offset) for queue in route.queues] == [
        (0, 0, 0),
        (1, 0, 5),
        (2, 0, 0),
    ]
    assert len({route.version for shard in plane.routes(topic) for route in shard}) == 1


def test_a_topic_is_followed_through_its_life(plane):
    """Made after it was subscribed, widened, deleted, made again; and silent while nothing happens."""
    name = f"late-{uuid.uuid4().hex[:6]}"
    plane.subscribe(name)
    plane.wait_until(lambda: f"{name} does not exist" in plane.observers[0].log_tail(), "it is looked for")

    plane.topic(2, name)
    plane.wait_for_route(name, 2)
    plane.widen(name, 5)
    plane.wait_for_route(name, 5)
    plane.delete(name)
    plane.wait_for_route(name, 0)
    plane.topic(1, name)
    plane.wait_for_route(name, 1)

    for shard in plane.routes(name):
        assert len({route.version for route in shard}) == len(shard) <= 5


def test_junk_in_the_log_does_no_harm(plane):
    """Anybody may write there; what no shard accepts is not routed."""
    topic, groups = plane.topic(1), plane.connection.topics.groups
    for junk in (
        b"",
        b"\xff",
        b"null",
        b"[" * 100_000,
        b'{"type":"heartbeat","subscriptions":[[]]}',
        os.urandom(9_000),
    ):
        plane.produce(groups, junk, key=b"billing")

    plane.subscribe(topic)

    plane.wait_for_route(topic, 1)


def test_neither_our_own_topics_nor_impossible_ones_are_routed(plane):
    """Consuming the control plane's topics would be a loop; %RETRY% topics are RocketMQ's."""
    topic = plane.topic(1)

    plane.subscribe(plane.connection.topics.groups, "%RETRY%billing", "..", topic)

    plane.wait_for_route(topic, 1)
    assert [plane.routes(name) for name in (plane.connection.topics.groups, "%RETRY%billing", "..")] == [[[]] * 4] * 3
    assert "WARNING" not in plane.observers[0].log_tail()


def test_a_killed_observer_is_replaced_by_another(plane):
    """It keeps nothing: the next one says the same, and knows from the log which topics there were."""
    kept, lost = plane.topic(2), plane.topic(2)
    plane.subscribe(kept, lost)
    before = plane.wait_for_route(kept, 2)
    plane.wait_for_route(lost, 2)

    plane.observers[0].kill()
    plane.delete(lost)
    plane.read()
    killed_ms = plane.newest_ms()
    plane.observe()

    assert plane.wait_for_route(kept, 2, times=2).version == before.version
    plane.wait_for_route(lost, 0)
    plane.wait_for_ticks(since_ms=killed_ms + 1)


def test_two_observers_say_the_same(plane):
    """A deployment that is rolled over has two for a while."""
    plane.observe()
    topic = plane.topic(2)

    plane.subscribe(topic)

    plane.wait_for_route(topic, 2, times=2)
    assert len({route.version for shard in plane.routes(topic) for route in shard}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_when_asked(plane, number):
    plane.wait_for_ticks()
    [observer] = plane.observers

    os.kill(observer.pid, number)

    plane.wait_until(lambda: not observer.is_running, "it has ended")
    assert observer.returncode == 0
    assert observer.log_tail().endswith("stopped")


def test_without_a_broker_it_waits_and_still_ends_when_asked(tmp_path):
    """Whoever starts first waits for the other; and a supervisor's patience is short."""
    command, keys = [*OBSERVE, "127.0.0.1:1"], os.environ | {"WAKEROLL_KEYS": str(key_file(tmp_path))}
    with Child("the observer", command, log=tmp_path / "log", env=keys, folder=ROOT) as observer:
        observer.wait_until(lambda: "no Kafka broker answered at 127.0.0.1:1" in observer.log_tail(), PATIENCE_S)

        assert observer.stop(PATIENCE_S) == 0
        assert observer.log_tail().count("WARNING") == 1


@pytest.mark.operate
def test_a_broker_may_go_and_come_back(tmp_path):
    """It says so once, and does not greet the broker with the ticks that it missed."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        plane = Plane(broker, tmp_path)
        try:
            plane.make_topics()
            observer = plane.observe()
            topic = plane.topic(2)
            plane.subscribe(topic)
            version = plane.wait_for_route(topic, 2).version
            plane.wait_for_ticks()

            broker.kill()
            for said in ("ticks were not delivered", "no Kafka broker answered"):
                plane.wait_until(lambda said=said: said in observer.log_tail(), f"it says: {said}")
            stopped_ms = plane.newest_ms()
            broker.start()
            plane.wait_for_ticks(since_ms=stopped_ms + 1, count=3)

            for times in plane.ticks(stopped_ms + 1).values():
                assert len(times) <= most_ticks(times)
            plane.widen(topic, 3)
            assert plane.wait_for_route(topic, 3).version != version
            plane.wait_until(lambda: "ticks are delivered again" in observer.log_tail(), "it says so")
            assert observer.log_tail(100).count("no Kafka broker answered") == 1
        finally:
            plane.close()
