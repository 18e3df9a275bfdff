"""A real broker whose log loses its tail or its head, or ends with records that are never delivered."""

import os
import re
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.decision_sink import Sink
from tests.support.waiting import wait_until
from wakeroll import Consumer, Queue
from wakeroll.connection import Connection, close_producer
from wakeroll.kafka_groups import KafkaGroups
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedBroker, Coordinator]]:
    """A broker that tests may kill, with a control plane at the newest level."""
    ensure_jars()
    # The index of a log that was cut by hand is made again at the start.
    with EmbeddedBroker(tmp_path_factory.mktemp("lossy"), settings={"log.cleaner.backoff.ms": 100}) as broker:
        connection = Connection(broker.bootstrap)
        ensure_topics(connection)
        coordinator = Coordinator(connection)
        coordinator.start()
        raise_level(coordinator)
        yield broker, coordinator
        coordinator.stop()


@pytest.fixture(scope="module", autouse=True)
def newest(plane: tuple[EmbeddedBroker, Coordinator]) -> Coordinator:
    return plane[1]


def raise_level(coordinator: Coordinator) -> None:
    newest = feature_levels.NEWEST
    coordinator.everywhere(Level(level=newest, by="test"), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {newest}, "the level is raised")


def send(coordinator: Coordinator, topic: str, name: str, count: int) -> list[str]:
    """Store messages, each in a batch of its own; return their values."""
    producer = coordinator.connection.producer()
    values = [f"{name}{number}" for number in range(count)]
    for value in values:
        producer.produce(topic, value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    close_producer(producer, PATIENCE_S)
    return values


def consumer_of(coordinator: Coordinator, topic: str, **settings: object) -> Consumer:
    bootstrap = coordinator.connection.bootstrap
    return Consumer(f"group-{topic}", [topic], bootstrap, consume_from="first", commit_interval=0.1, **settings)


def read(consumer: Consumer, count: int) -> list[str]:
    """Poll until so many messages came; return them and those that come right behind them."""
    found: list[str] = []

    def poll() -> None:
        if (message := consumer.poll(0.2)) is not None:
            found.append(text_of(message))

    wait_until(lambda: len(found) >= count, f"{count} messages are delivered", patience_s=PATIENCE_S, between=poll)
    poll()
    return found


def text_of(message: Message) -> str:
    return (message.value() or b"").decode()


def committed(coordinator: Coordinator, topic: str) -> dict[int, int]:
    return coordinator.offsets(f"group-{topic}", topic)


def await_commit(
    coordinator: Coordinator, topic: str, offset: int, between: Callable[[], object] | None = None
) -> None:
    """Wait until an offset is committed."""
    wait_until(
        lambda: committed(coordinator, topic) == {0: offset},
        f"offset {offset} of {topic} is committed",
        patience_s=PATIENCE_S,
        between=between,
        state=lambda: committed(coordinator, topic),
    )


def cut(folder: Path, batches: int) -> None:
    """Keep so many batches of a partition's log, as after a power failure."""
    log = folder / "00000000000000000000.log"
    data, at = log.read_bytes(), 0
    while at < len(data):
        base, length = struct.unpack(">qi", data[at : at + 12])
        if base == batches:
            break
        at += 12 + length
    os.truncate(log, at)
    for index in folder.glob("*index"):
        index.unlink()


def test_consumers_continue_where_a_log_lost_its_tail(plane):
    """Live ones and those that were away: no earlier message is repeated, and no new one is lost."""
    broker, coordinator = plane
    new = {"live": 5, "live-grown": 60, "away-few": 5, "away-same": 10, "away-grown": 60}
    consumers = {}
    for topic in new:
        coordinator.topic(1, topic, is_pulled=False)
        old = send(coordinator, topic, "old", 30)
        consumers[topic] = consumer_of(coordinator, topic)
        assert read(consumers[topic], 30) == old
        assert consumers[topic].commit(PATIENCE_S)
        if topic.startswith("away"):
            consumers[topic].close()
    broker.kill()
    for topic in new:
        cut(broker.folder / "records" / f"{topic}-0", 20)
    broker.start()
    values = {topic: send(coordinator, topic, "new", count) for topic, count in new.items()}

    for topic, count in new.items():
        if topic.startswith("away"):
            consumers[topic] = consumer_of(coordinator, topic)
        assert read(consumers[topic], count) == values[topic], topic
        assert consumers[topic].commit(PATIENCE_S)
        await_commit(coordinator, topic, 20 + count)
        consumers[topic].close()


def test_the_committed_offset_passes_messages_that_expired(newest):
    """The queue is empty then, and so must be its lag."""
    topic = newest.topic(1)
    old = send(newest, topic, "old", 10)
    with consumer_of(newest, topic) as consumer:
        assert read(consumer, 10) == old
        consumer.pause([(topic, 0)])
        consumer.poll(0)
        send(newest, topic, "lost", 10)
        admin = newest.connection.admin()
        [deleted] = admin.delete_records([TopicPartition(topic, 0, 20)]).values()
        deleted.result(PATIENCE_S)
        consumer.resume([(topic, 0)])

        def poll() -> None:
            assert consumer.poll(0.1) is None

        wait_until(
            lambda: committed(newest, topic) == {0: 20}, "the offset is committed", patience_s=PATIENCE_S, between=poll
        )
        assert consumer.position((topic, 0)) == 20
        assert consumer.lag() == {Queue(topic, "", 0): 0}


@pytest.mark.parametrize("pushes", [False, True], ids=["poll", "run"])
def test_the_committed_offset_passes_the_markers_of_transactions_and_what_was_aborted(newest, pushes):
    topic = newest.topic(1)
    producer = newest.connection.producer(**{"transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for value, succeeds in (("first", True), ("aborted", False), ("second", True), ("aborted again", False)):
        producer.begin_transaction()
        producer.produce(topic, value, partition=0)
        producer.flush(PATIENCE_S)
        if succeeds:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
    close_producer(producer, PATIENCE_S)

    seen: list[str] = []
    with consumer_of(newest, topic) as consumer:
        if pushes:
            consume_until_committed(newest, consumer, topic, 8, seen)
        else:
            await_commit(
                newest,
                topic,
                8,
                lambda: seen.extend(text_of(message) for message in [consumer.poll(0.1)] if message is not None),
            )
        assert consumer.lag() == {Queue(topic, "", 0): 0}
    assert seen == ["first", "second"]


def test_mirrored_offsets_and_lag_come_to_rest_after_a_transactional_producer(newest):
    """An autoscaler that reads them would keep a worker for ever, because of markers that nobody can consume."""
    topic, connection = newest.topic(1), newest.connection
    queue, group_id = Queue(topic, "", 0), f"group-{topic}"
    producer = connection.producer(**{"transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    kafka, stop, sink = KafkaGroups(connection, PATIENCE_S), Event(), Sink(newest)
    mirror = OffsetMirror(connection, re.compile(re.escape(group_id)), stop, ObserverMetrics(mirrors=True))
    mirroring = Thread(target=mirror.run)
    sink.start()
    mirroring.start()
    try:
        with consumer_of(newest, topic) as consumer:
            for round_number, is_committed in enumerate((True, False)):
                producer.begin_transaction()
                producer.produce(topic, str(round_number), partition=0)
                producer.flush(PATIENCE_S)
                if is_committed:
                    producer.commit_transaction(PATIENCE_S)
                else:
                    producer.abort_transaction(PATIENCE_S)
                end = 2 * (round_number + 1)  # each message is followed by a marker
                wait_until(
                    lambda end=end: kafka.read(group_id).offsets.get(queue) == end,
                    f"Kafka's group has the end, {end}",
                    between=lambda: consumer.poll(0.1),
                    state=lambda: str(kafka.read(group_id).offsets),
                )
                assert Cluster(connection).all_offsets([(topic, 0)])[topic, 0][1] == end
                assert consumer.lag() == {queue: 0}
    finally:
        stop.set()
        mirroring.join()
        sink.stop()
        close_producer(producer, PATIENCE_S)


def test_the_committed_offset_passes_messages_that_compaction_has_removed(newest):
    """At the end of the log, only the marker of the transaction is left, which began the last segment."""
    topic, connection = newest.topic(1), newest.connection
    compacted = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    compacted |= {"delete.retention.ms": "0", "min.compaction.lag.ms": "0"}
    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in compacted.items()
        ],
    )
    admin = connection.admin()
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    producer = connection.producer(**{"transactional.id": topic})
    producer.init_transactions(PATIENCE_S)

    def send_all(messages: list[tuple[str, str | None]]) -> None:
        producer.begin_transaction()
        for key, value in messages:
            producer.produce(topic, value, key=key, partition=0)
        producer.flush(PATIENCE_S)

    def await_compaction(left: list[int]) -> None:
        wait_until(
            lambda: offsets_in(connection, topic) == left,
            f"messages {left} are left",
            state=lambda: str(offsets_in(connection, topic)),
        )

    send_all([("kept", "value"), *((f"key-{number}", "value") for number in range(10))])
    producer.commit_transaction(PATIENCE_S)
    send_all([(f"key-{number}", None) for number in range(10)])
    producer.commit_transaction(PATIENCE_S)
    await_compaction([0, *range(12, 22)])
    send_all([("kept", "aborted")])  # the second pass of the cleaner, which removes tombstones, needs something new
    producer.abort_transaction(PATIENCE_S)
    await_compaction([0])
    close_producer(producer, PATIENCE_S)
    _, end = Cluster(connection).all_offsets([(topic, 0)])[topic, 0]
    assert end == 25, "22 messages and a marker for each of three transactions"

    with consumer_of(newest, topic) as consumer:
        assert read(consumer, 1) == ["value"]
        await_commit(newest, topic, end, lambda: consumer.poll(0.1))
        assert consumer.lag() == {Queue(topic, "", 0): 0}


def offsets_in(connection: Connection, topic: str) -> list[int | None]:
    """Return the offsets of the messages that a partition's log still has."""
    found: list[int | None] = []
    reader = connection.consumer(**{"enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    while (message := reader.poll(PATIENCE_S)) is not None and message.error() is None:
        found.append(message.offset())
    reader.close()
    return found


def consume_until_committed(
    coordinator: Coordinator, consumer: Consumer, topic: str, end: int, seen: list[str]
) -> None:
    """Run a handler until an offset is committed."""

    def handle(messages: list[Message]) -> None:
        seen.extend(map(text_of, messages))

    def stop() -> None:
        await_commit(coordinator, topic, end)
        consumer.stop()

    stopper = Thread(target=stop)
    stopper.start()
    consumer.run(handle)
    stopper.join()
