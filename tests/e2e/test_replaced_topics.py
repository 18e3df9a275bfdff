"""Control topics that are deleted and created again while processes read them, on a broker that was restarted.

After a restart the leader epochs are above 0. Kafka's client takes those of the new topic for outdated, and reads
nothing any more, without an error.
"""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics, close_producer
from wakeroll.decision_log import DecisionLog
from wakeroll.errors import NotReachable
from wakeroll.kafka_groups import KafkaGroups
from wakeroll_model.decisions import Membership, Offset
from wakeroll_model.events import Arrival, Heartbeat
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.jobs.era_watch import EraWatch, LaterEra
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer import subscribed_topics
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror
from wakeroll_pipeline.observer.topic_follower import Follower
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e

GROUP = "billing"
ORDERS = Queue("orders", "", 0)
OLD_RECORDS = 60
"""In each partition of the first inbox: the new one ends before that for a long time."""
PLANES = ("ends-before", "has-it")
WAKES = "wakes"
SMALL = ("decisions-5", "decisions-1", "eras-5", "eras-1", "mirror", "observer", "spans")
"""Prefixes of the topics of each test; these have one partition."""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory) -> Iterator[EmbeddedBroker]:
    """A broker that was restarted since the control topics were created."""
    ensure_jars()
    folder: Path = tmp_path_factory.mktemp("restarted")
    with EmbeddedBroker(folder) as broker:
        for prefix in (*PLANES, WAKES):
            ensure_topics(Connection(broker.bootstrap, topics=Topics(prefix)))
        for prefix in SMALL:
            connection = Connection(broker.bootstrap, topics=Topics(prefix))
            ensure_topics(connection, partitions=1, inbox_partitions=1)
        assert Cluster(connection).create([NewTopic("orders", 1, 1)]) == {"orders": None}
        broker.stop()
        broker.start()
        yield broker


def append(connection: Connection, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = connection.producer()
    for value in values:
        producer.produce(topic, value, key=GROUP.encode(), partition=partition)
    assert producer.flush(60) == 0
    close_producer(producer, 1)


def make_again(connection: Connection, topic: str) -> None:
    """Delete a topic and create it again, with the same number of partitions."""
    admin, cluster = connection.admin(), Cluster(connection)
    partitions = len(admin.list_topics(topic, 30).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result(60)

    def create() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        except KafkaException:  # the deletion is not over
            return False
        return True

    wait_until(create, f"{topic} is created again")
    wait_until(lambda: cluster.racks([topic])[topic], f"the brokers know {topic}")
    cluster.all_offsets((topic, partition) for partition in range(partitions))


def joined(client_id: str, seq: int, era: int = 1) -> bytes:
    return encode_decision(
        Membership(shard=f"groups-0.{era}", seq=seq, group_id=GROUP, client_id=client_id, change="joined", epoch=1)
    )


def committed(offset: int, seq: int) -> bytes:
    return encode_decision(
        Offset(shard="groups-0.1", seq=seq, group_id=GROUP, queue=ORDERS, client_id="c", offset=offset, epoch=1)
    )


@pytest.mark.parametrize(("prefix", "records"), [("ends-before", 0), ("has-it", 2 * OLD_RECORDS)])
def test_a_consumer_follows_an_inbox_that_was_created_again(restarted, group_id, prefix, records):
    """Otherwise it would never hear that a queue is revoked, and keep what others were given since.

    The new inbox ends before the consumer's position, or has grown beyond it.
    """
    connection = Connection(restarted.bootstrap, topics=Topics(prefix))
    inbox = connection.topics.inbox
    partitions = len(connection.admin().list_topics(inbox, 30).topics[inbox].partitions)
    plane = Coordinator(connection)
    plane.start()
    owned: dict[str, set[int]] = {"a": set(), "b": set()}

    def fill(count: int) -> None:
        for partition in range(partitions):
            append(connection, inbox, *[b"{}"] * count, partition=partition)

    def member(name: str) -> Consumer:
        return Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            client_id=name,
            prefix=prefix,
            on_assigned=lambda _, queues: owned[name].update(queue.queue_id for queue in queues),
            on_revoked=lambda _, queues: owned[name].difference_update(queue.queue_id for queue in queues),
        )

    with ExitStack() as stack:
        stack.callback(plane.stop)
        topic = plane.topic(4)
        fill(OLD_RECORDS)
        first = stack.enter_context(member("a"))
        wait_until(lambda: len(owned["a"]) == 4, "the first one has all queues", between=partial(first.poll, 0.1))
        make_again(connection, inbox)
        plane.replace_producer()
        fill(records)
        second = stack.enter_context(member("b"))

        def poll() -> None:
            second.poll(0.1)
            first.poll(0.1)  # if the second one was assigned a queue, this calls `on_revoked` for it
            assert not owned["a"] & owned["b"]

        wait_until(lambda: len(owned["a"]) == len(owned["b"]) == 2, "each has its share", between=poll)
        owners = {queue.queue_id: client_id for queue, client_id in plane.owners(group_id).items()}
        assert owners == {number: name for name, numbers in owned.items() for number in numbers}


@pytest.mark.parametrize("old", [5, 1], ids=["it ends before the position", "it has the position"])
def test_a_reader_of_decisions_reads_a_topic_that_was_created_again(restarted, old):
    """`wakeroll wake` would think for ever that a group has members. The coordinator counts from 1 again."""
    connection = Connection(restarted.bootstrap, topics=Topics(f"decisions-{old}"))
    topic = connection.topics.decisions
    append(connection, topic, *(joined(f"old-{number}", number + 1) for number in range(old)))
    consumer = connection.operators_consumer()
    log = DecisionLog.of_group(connection, consumer, GROUP, timeout=30, is_lasting=True)
    found: list[str] = []
    try:
        log.from_the_start()
        assert [one.client_id for one in log.until_now()] == [f"old-{number}" for number in range(old)]
        make_again(connection, topic)
        append(connection, topic, joined("new-1", 1), joined("new-2", 2))
        wait_until(
            lambda: "new-2" in found,
            "the new decisions are read",
            between=lambda: found.extend(one.client_id for one in log.wait(0.5)),
            state=lambda: found,
        )

        assert found == ["new-1", "new-2"]
        assert log.was_replaced()
    finally:
        log.close()
        consumer.close()


@pytest.mark.parametrize("old", [5, 1], ids=["it ends before the position", "it has the position"])
def test_a_replica_hears_of_a_later_era_in_a_topic_that_was_created_again(restarted, old):
    """Otherwise it would decide for nobody, without a word."""
    settings = Settings(bootstrap=restarted.bootstrap, prefix=f"eras-{old}", partitions=1, replica="b")
    connection, topic = settings.connection, settings.connection.topics.decisions
    append(connection, topic, *(joined("c", number + 1) for number in range(old)))

    with EraWatch(settings).start({"groups-0": 1}) as watch:
        make_again(connection, topic)
        append(connection, topic, joined("c", 1), joined("d", 1, era=2))

        def is_later() -> bool:
            try:
                watch.raise_if_later()
            except LaterEra as error:
                return "groups-0 has begun era 2, but replica 'b' decides in era 1" in str(error)
            return False

        wait_until(is_later, "the later era is found")


@pytest.mark.operate
def test_a_group_is_woken_when_the_new_decisions_show_that_it_has_no_members(restarted, group_id, tmp_path):
    """`wakeroll wake` takes its members for unknown until then."""
    connection, started = Connection(restarted.bootstrap, topics=Topics(WAKES)), tmp_path / "started"
    plane = Coordinator(connection)
    plane.start()

    def join_and_leave() -> None:
        with Consumer(group_id, [topic], connection.bootstrap, prefix=WAKES, consume_from="first") as consumer:
            wait_until(lambda: consumer.assignment(), "it has joined", between=lambda: consumer.poll(0.05))
        wait_until(lambda: not plane.members(group_id), "it has left")

    with ExitStack() as stack:
        stack.callback(plane.stop)
        topic = plane.topic(1, is_pulled=False)
        join_and_leave()
        where = ["--topic", topic, "--bootstrap", connection.bootstrap, "--prefix", WAKES]
        argv = [sys.executable, "-m", "wakeroll_pipeline.cli", "wake", group_id, "--exec", f"touch {started}", *where]
        waker = stack.enter_context(Child("the waker", argv, log=tmp_path / "waker.log"))
        wait_until(lambda: "has the lease" in waker.log_tail(), "the waker watches", state=waker.log_tail)
        make_again(connection, connection.topics.decisions)
        plane.replace_producer()
        wait_until(
            lambda: "reading it from its start" in waker.log_tail(), "the waker finds the new log", state=waker.log_tail
        )
        assert not started.exists()

        join_and_leave()
        plane.produce(topic, 0, 1)
        plane.report(Arrival(queue=Queue(topic, "", 0), next_offset=1))
        wait_until(started.exists, "a worker is started", state=waker.log_tail)


def running(target: Callable[[], object], stop: threading.Event) -> ExitStack:
    """Run something in a thread until the stack is closed."""
    thread = threading.Thread(target=target)
    thread.start()
    stack = ExitStack()
    stack.callback(thread.join)
    stack.callback(stop.set)
    return stack


@pytest.mark.parametrize("begin", [0, 20], ids=["it has the beginning", "it ends before"])
def test_a_part_of_a_log_that_was_created_again_is_not_taken_for_whole(restarted, begin):
    """`reshard` would leave out records, and `restore` eras, without a word."""
    connection = Connection(restarted.bootstrap, topics=Topics("spans"))
    topic = connection.topics.decisions
    append(connection, topic, *[joined("c", 1)] * 3)

    with pytest.raises(NotReachable, match=rf"{topic}-0 does not have .* begins at 0 and ends at \d+; it was created"):
        list(read_spans(connection, {(topic, 0): Span(begin, 40)}))


def test_the_mirror_copies_what_a_topic_has_that_was_created_again(restarted):
    connection, stop = Connection(restarted.bootstrap, topics=Topics("mirror")), threading.Event()
    topic = connection.topics.decisions
    append(connection, topic, *(committed(number, number) for number in range(1, 6)))
    mirror = OffsetMirror(connection, re.compile(".*"), stop, ObserverMetrics(mirrors=True))
    kafka = KafkaGroups(connection, 30)

    def mirrored() -> dict[Queue, int]:
        return dict(kafka.read(GROUP).offsets)

    with running(mirror.run, stop):
        wait_until(lambda: mirrored() == {ORDERS: 5}, "the offset is mirrored", state=mirrored)
        make_again(connection, topic)
        append(connection, topic, committed(2, 1))
        wait_until(lambda: mirrored() == {ORDERS: 2}, "the offset of the new log is mirrored", state=mirrored)


def test_the_observer_hears_subscriptions_in_a_topic_that_was_created_again(restarted):
    """Otherwise no topic that is subscribed later gets a route, and its consumers get no queue."""
    connection = Connection(restarted.bootstrap, topics=Topics("observer"))
    topic, cluster = connection.topics.groups, Cluster(connection)
    names = {"group_id": GROUP, "client_id": "c", "instance_id": "i"}
    beat = msgspec.json.encode(Heartbeat(**names, subscriptions=[]))
    follower = Follower(connection, topic, subscribed_topics.read)
    heard: list[object] = []

    def hear() -> None:
        with suppress(NotReachable):  # as the observer's router, which asks again
            cluster.racks([topic])
            follower.follow(1, cluster)
        heard.extend(follower.receive(0.5))

    try:
        append(connection, topic, *[beat] * 5)
        wait_until(lambda: len(heard) == 5, "the heartbeats are heard", between=hear)
        make_again(connection, topic)
        append(connection, topic, beat)
        heard.clear()
        wait_until(lambda: heard, "the heartbeat in the new topic is heard", between=hear)
        assert len(heard) == 1
    finally:
        follower.close()
