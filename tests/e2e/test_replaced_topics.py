"""Control topics that are deleted and created again while processes read them, on a broker that was restarted.

After a restart the leader epochs are above 0. Kafka's client takes those of the new topic for outdated, and reads
nothing any more, without an error.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import NewTopic

from pipeline.kafka.control_topics import ensure_topics
from pipeline.kafka.topic_admin import Cluster
from pipeline.local.broker import EmbeddedBroker
from pipeline.spark.jars import ensure_jars
from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, close_producer

pytestmark = pytest.mark.e2e

OLD_RECORDS = 60
"""In each partition of the first inbox: the new one ends before that for a long time."""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory) -> Iterator[EmbeddedBroker]:
    """A broker with control topics; each test restarts it."""
    ensure_jars()
    folder: Path = tmp_path_factory.mktemp("restarted")
    with EmbeddedBroker(folder) as broker:
        ensure_topics(Connection(broker.bootstrap))
        yield broker


@pytest.fixture
def plane(restarted) -> Iterator[Coordinator]:
    """A control plane whose topics are older than the last start of the broker."""
    restarted.stop()
    restarted.start()
    connection = Connection(restarted.bootstrap)
    coordinator = Coordinator(connection)
    coordinator.start()
    yield coordinator
    coordinator.stop()


def fill(connection: Connection, topic: str, partitions: int, count: int = OLD_RECORDS) -> None:
    """Append records that mean nothing to each partition."""
    producer = connection.producer()
    for partition in range(partitions):
        for _ in range(count):
            producer.produce(topic, b"{}", partition=partition)
    assert producer.flush(60) == 0
    close_producer(producer, 1)


def make_again(connection: Connection, topic: str) -> None:
    """Delete a topic and create it again, with the same number of partitions."""
    admin = connection.admin()
    partitions = len(admin.list_topics(topic, 30).topics[topic].partitions)
    admin.delete_topics([topic])[topic].result(60)

    def create() -> bool:
        try:
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        except KafkaException:  # the deletion is not over
            return False
        return True

    wait_until(create, f"{topic} is created again")
    cluster = Cluster(connection)
    wait_until(lambda: cluster.racks([topic])[topic], f"the brokers know {topic}")
    cluster.all_offsets((topic, partition) for partition in range(partitions))


def owned_by(coordinator: Coordinator, group_id: str) -> dict[str, set[int]]:
    """Return client -> numbers of the queues that it owns, as the coordinator knows."""
    owners: dict[str, set[int]] = {}
    for queue, client_id in coordinator.owners(group_id).items():
        owners.setdefault(client_id, set()).add(queue.queue_id)
    return owners


@pytest.mark.parametrize("records", [0, 2 * OLD_RECORDS], ids=["it ends before the position", "it has the position"])
def test_a_consumer_follows_an_inbox_that_was_created_again(plane, group_id, records):
    """Otherwise it would never hear that a queue is revoked, and keep what others were given since."""
    connection, inbox = plane.connection, plane.connection.topics.inbox
    topic = plane.topic(4)
    partitions = len(connection.admin().list_topics(inbox, 30).topics[inbox].partitions)
    fill(connection, inbox, partitions)
    owned: dict[str, set[int]] = {"a": set(), "b": set()}

    def member(name: str) -> Consumer:
        return Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            client_id=f"{name}-{group_id}",
            on_assigned=lambda queues: owned[name].update(queue.queue_id for queue in queues),
            on_revoked=lambda queues: owned[name].difference_update(queue.queue_id for queue in queues),
        )

    with ExitStack() as stack:
        first = stack.enter_context(member("a"))
        wait_until(lambda: len(owned["a"]) == 4, "the first one has all queues", between=partial(first.poll, 0.1))
        make_again(connection, inbox)
        plane.replace_producer()
        fill(connection, inbox, partitions, records)
        second = stack.enter_context(member("b"))

        def poll() -> None:
            second.poll(0.1)
            first.poll(0.1)  # if the second one was assigned a queue, this calls `on_revoked` for it
            assert not owned["a"] & owned["b"]

        wait_until(
            lambda: len(owned["a"]) == len(owned["b"]) == 2,
            "both have their share",
            between=poll,
            state=lambda: (owned, owned_by(plane, group_id)),
        )
        assert owned == {name: owned_by(plane, group_id)[f"{name}-{group_id}"] for name in owned}
