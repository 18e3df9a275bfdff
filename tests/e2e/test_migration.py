"""The way from Kafka's own consumer groups to wakeroll and back, with real consumers of both."""

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage
from wakeroll.connection import Connection
from wakeroll.kafka_groups import KafkaGroups
from wakeroll_model.queue import Queue
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("sink")]

PATIENCE_S = 120.0
OF_A_QUEUE = 30
PAGE = (Path(__file__).parents[2] / "docs" / "tutorial-operators.md").read_text(encoding="utf-8")

Offsets = dict[int, list[int]]
"""Queue number -> offsets of the messages that were received."""


@pytest.fixture(scope="module")
def kafka(coordinator: Coordinator) -> KafkaGroups:
    return KafkaGroups(coordinator.connection, PATIENCE_S)


@pytest.fixture
def topic(coordinator: Coordinator) -> str:
    """A topic of two queues with 30 messages each."""
    topic = coordinator.topic(2)
    for number in (0, 1):
        coordinator.produce(topic, number, OF_A_QUEUE)
    return topic


@contextmanager
def kafkas_own(connection: Connection, group_id: str, topic: str, protocol: str = "classic") -> Iterator[KafkaConsumer]:
    """A consumer of Kafka's own group."""
    settings = {
        "bootstrap.servers": connection.bootstrap,
        "group.id": group_id,
        "group.protocol": protocol,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = KafkaConsumer(settings)
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: KafkaConsumer | Consumer, enough: Callable[[Offsets], bool]) -> Offsets:
    """Poll until enough messages have come; return their offsets."""
    found: Offsets = defaultdict(list)

    def poll() -> None:
        message = consumer.poll(0.05)
        if message is not None:
            assert message.error() is None
            found[message.partition()].append(message.offset())

    wait_until(lambda: enough(found), "enough messages have come", between=poll, state=lambda: dict(found))
    return dict(found)


def at_least(count: int) -> Callable[[Offsets], bool]:
    return lambda found: sum(map(len, found.values())) >= count


def end_of(found: Offsets, before: dict[int, int]) -> dict[int, int]:
    """Return the offsets behind the last messages: queue number -> the next message."""
    return before | {number: offsets[-1] + 1 for number, offsets in found.items()}


@contextmanager
def mirror(connection: Connection, groups: str) -> Iterator[None]:
    """A mirror of the offsets of matching groups, as the observer runs it."""
    stop = threading.Event()
    mirror = OffsetMirror(connection, re.compile(groups), stop, ObserverMetrics(mirrors=True))
    thread = threading.Thread(target=mirror.run, name="mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_comes_from_kafka_and_goes_back_without_a_loss_or_a_repetition(
    coordinator, sink, admin, kafka, topic, group_id, protocol
):
    """A part is read by a Kafka consumer, a part by ours, and the rest by a Kafka consumer again."""
    connection = coordinator.connection
    with kafkas_own(connection, group_id, topic, protocol) as consumer:
        first = read(consumer, at_least(20))
        consumer.commit(
            offsets=[TopicPartition(topic, number, offsets[-1] + 1) for number, offsets in first.items()],
            asynchronous=False,
        )
        with pytest.raises(InvalidUsage, match=rf"Kafka's group '{group_id}' has members \(rdkafka@127.0.0.1\)"):
            admin.plan_import(group_id)
    left = end_of(first, {0: 0, 1: 0})

    with mirror(connection, rf"{group_id}|others-.*"):
        plan = admin.plan_import(group_id)
        assert plan.asked == f"to the offsets of Kafka's group {group_id}"
        assert {row.queue.queue_id: (row.committed, row.offset) for row in plan.rows} == {
            number: (None, left[number]) for number in first
        }
        admin.reset(plan)
        with Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            prefix=connection.topics.prefix,
            consume_from="first",
            commit_interval=0.2,
        ) as ours:
            second = read(ours, at_least(20))
        taken = end_of(second, left)
        sink.wait_until_left(ours.client_id)
        wait_until(
            lambda: (
                {queue.queue_id: offset for queue, offset in kafka.read(group_id).offsets.items()}
                == {number: offset for number, offset in taken.items() if offset}
            ),
            "Kafka's group has our offsets",
            state=lambda: (kafka.read(group_id).offsets, taken),
        )

    with kafkas_own(connection, group_id, topic, protocol) as consumer:
        third = read(consumer, at_least(2 * OF_A_QUEUE - sum(taken.values())))
    for number in (0, 1):
        assert first.get(number, []) + second.get(number, []) + third.get(number, []) == list(range(OF_A_QUEUE))


def test_offsets_of_another_group_are_taken_over_by_topic(coordinator, admin, kafka, topic, group_id):
    """An offset that Kafka does not have any more is the first message, and a queue that is gone is left out."""
    other = coordinator.topic(1)
    offsets = {Queue(topic, "", 0): 12, Queue(topic, "", 1): 5_000, Queue(other, "", 0): 0}
    assert kafka.write({f"old-{group_id}": offsets}) == {}

    whole = admin.plan_import(group_id, kafka_group=f"old-{group_id}")
    assert {str(row.queue): row.offset for row in whole.rows} == {f"{topic}-0": 12, f"{topic}-1": 0, f"{other}-0": 0}
    assert whole.notes == (f"{topic}-1 has no offset 5000 any more; its first message is 0",)

    admin.reset(admin.plan_import(group_id, kafka_group=f"old-{group_id}", topic=topic))
    assert coordinator.offsets(group_id, topic) == {0: 12, 1: 0}
    assert coordinator.offsets(group_id, other) == {}


def test_a_group_without_offsets_is_named(admin, kafka, topic, group_id):
    with pytest.raises(InvalidUsage, match=rf"Kafka's group '{group_id}' has no offsets of an existing topic"):
        admin.plan_import(group_id)
    assert kafka.write({group_id: {Queue(topic, "", 0): 1}}) == {}
    with pytest.raises(InvalidUsage, match="has no offsets of the topic nowhere"):
        admin.plan_import(group_id, topic="nowhere")


def test_the_mirror_waits_for_kafkas_members_to_leave_and_goes_on_where_it_was(
    coordinator, sink, kafka, topic, group_id, caplog
):
    """Offsets that Kafka refuses are kept, also when the mirror ends meanwhile: its position waits for them."""
    connection = coordinator.connection
    with kafkas_own(connection, group_id, topic) as consumer:
        read(consumer, at_least(1))
        with mirror(connection, group_id):
            with Consumer(
                group_id, [topic], connection.bootstrap, prefix=connection.topics.prefix, consume_from="first"
            ) as ours:
                read(ours, at_least(2 * OF_A_QUEUE))
            sink.wait_until_left(ours.client_id)
            wait_until(lambda: "has members" in caplog.text, "the mirror says why it waits")
    assert kafka.read(group_id).offsets == {}

    with mirror(connection, group_id):
        wait_until(
            lambda: kafka.read(group_id).offsets == {Queue(topic, "", number): OF_A_QUEUE for number in (0, 1)},
            "Kafka's group has our offsets",
            state=lambda: kafka.read(group_id),
        )


def test_the_observer_routes_an_imported_topic_and_mirrors_the_group(
    coordinator, sink, kafka, group_id, wakeroll, tmp_path
):
    """Nobody has subscribed to the topic before its offsets are imported."""
    connection = coordinator.connection
    topic = f"imported-{group_id}"
    brokers = connection.admin()
    brokers.create_topics([NewTopic(topic, 1, 1)])[topic].result(PATIENCE_S)
    coordinator.produce(topic, 0, OF_A_QUEUE)
    queue = Queue(topic, "", 0)
    assert kafka.write({group_id: {queue: 7}}) == {}
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]
    words = re.search(r"^wakeroll (observe --mirror-offsets billing) ", PAGE, flags=re.MULTILINE)[1].split()
    command = [group_id if word == "billing" else word for word in words]

    with Child(
        "the observer", [sys.executable, "-m", "wakeroll_pipeline.cli", *command, *where], log=tmp_path / "observer.log"
    ) as observer:
        code, _, complaint = wakeroll("import-offsets", group_id, *where, "--execute")
        assert code == 0, complaint
        with Consumer(
            group_id, [topic], connection.bootstrap, prefix=connection.topics.prefix, commit_interval=0.2
        ) as ours:
            assert read(ours, at_least(10))[0][0] == 7
        wait_until(
            lambda: kafka.read(group_id).offsets[queue] > 7, "Kafka's group has our offset", state=observer.log_tail
        )
    sink.wait_until_left(ours.client_id)


def test_the_command_shows_a_plan_and_carries_it_out(coordinator, kafka, topic, group_id, wakeroll):
    connection = coordinator.connection
    assert kafka.write({group_id: {Queue(topic, "", 0): 7}}) == {}
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]

    code, plan, complaint = wakeroll("import-offsets", group_id, *where)
    assert code == 0, complaint
    assert re.search(rf"{topic}-0 +│ +unknown +│ +7 ", plan)
    assert "nothing has changed" in plan
    assert coordinator.offsets(group_id, topic) == {}

    code, done, complaint = wakeroll("import-offsets", group_id, *where, "--execute")
    assert code == 0, complaint
    assert "done, in epoch" in done
    assert coordinator.offsets(group_id, topic) == {0: 7}

    code, _, complaint = wakeroll("import-offsets", f"no-{group_id}", *where)
    assert code == 2
    assert "has no offsets of an existing topic; is the name correct?" in " ".join(complaint.split())


def test_an_offset_in_an_open_transaction_is_kept(coordinator, admin, kafka, topic, group_id):
    """Consumers that read uncommitted messages commit there; the import must not go back to the first message."""
    connection = coordinator.connection
    producer = connection.producer(**{"transactional.id": group_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for _ in range(5):
        producer.produce(topic, b"x", partition=0)
    producer.flush(PATIENCE_S)
    try:
        assert kafka.write({group_id: {Queue(topic, "", 0): OF_A_QUEUE + 2}}) == {}

        plan = admin.plan_import(group_id)

        assert [row.offset for row in plan.rows] == [OF_A_QUEUE + 2]
        assert plan.notes == ()
    finally:
        producer.abort_transaction(PATIENCE_S)


def test_the_mirror_follows_a_reset_backwards_and_leaves_its_own_position_alone(coordinator, admin, kafka, topic):
    """A regular expression for all groups matches the group of the mirror too."""
    connection = coordinator.connection
    own = f"{connection.topics.prefix}.offset-mirror"
    queue = Queue(topic, "", 0)
    group_id = f"back-{topic}"
    with mirror(connection, ".*"):
        for offset in (20, 5):
            for group in (group_id, own):
                admin.reset(admin.plan_reset(group, offset, queue=queue))
            wait_until(lambda offset=offset: kafka.read(group_id).offsets == {queue: offset}, "it follows")
    assert queue not in kafka.read(own).offsets
