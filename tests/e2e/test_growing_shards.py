"""More shards while consumers run: their clients know only the old partitions, and nobody loses anything."""

import threading
import time
import uuid
from collections.abc import Iterator
from itertools import count

import pytest

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics
from wakeroll_model.config import CONTROL_PARTITIONS
from wakeroll_model.decisions import Fenced, Handover, Rejected
from wakeroll_model.events import Arrival
from wakeroll_model.invariants import broken_epochs, broken_offsets, broken_ownership, broken_revocations
from wakeroll_model.partitioner import partition_of
from wakeroll_model.queue import Queue
from wakeroll_pipeline.kafka.control_topics import ensure_topics

pytestmark = pytest.mark.e2e

MORE = 2 * CONTROL_PARTITIONS


@pytest.fixture
def coordinator(broker) -> Iterator[Coordinator]:
    """A control plane of one test, whose number of partitions changes."""
    connection = Connection(broker.bootstrap, topics=Topics(f"growing-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    thread = Coordinator(connection)
    thread.start()
    yield thread
    thread.stop()


def moving(name: str) -> str:
    """Return a name whose partition changes when the number does."""
    names = (f"{name}-{number}" for number in count())
    return next(one for one in names if partition_of(one.encode(), MORE) >= CONTROL_PARTITIONS)


class Reader:
    """A consumer, and the offsets that it was handed."""

    def __init__(self, coordinator: Coordinator, group_id: str, topic: str) -> None:
        connection = coordinator.connection
        self.handed: list[tuple[int, int]] = []
        self.consumer = Consumer(
            group_id, [topic], connection.bootstrap, prefix=connection.topics.prefix, consume_from="first"
        )
        self.consumer.join()

    def poll(self) -> None:
        message = self.consumer.poll(0.02)
        if message is not None:
            self.handed.append((message.partition(), message.offset()))


def test_consumers_go_on_and_nothing_is_lost_or_repeated(coordinator):
    """Their records go to the old partition until it rejects one; then they query the partitions, and commit again."""
    group_id, topic = moving("billing"), coordinator.topic(4)
    readers = [Reader(coordinator, group_id, topic) for _ in range(2)]

    def poll() -> None:
        for reader in readers:
            reader.poll()

    def produce(messages: int) -> None:
        for number in range(4):
            coordinator.produce(topic, number, messages)

    def handed() -> list[tuple[int, int]]:
        return sorted(one for reader in readers for one in reader.handed)

    try:
        wait_until(
            lambda: set(coordinator.owners(group_id).values()) == {one.consumer.client_id for one in readers},
            "both have queues",
            between=poll,
        )
        produce(50)
        wait_until(lambda: len(handed()) == 200, "all is read", between=poll)
        before = coordinator.owners(group_id)

        coordinator.grow(MORE)

        assert coordinator.owners(group_id) == before
        produce(50)
        wait_until(
            lambda: coordinator.offsets(group_id, topic) == dict.fromkeys(range(4), 100),
            "the new shard has all commits",
            between=poll,
            state=lambda: coordinator.offsets(group_id, topic),
        )
        assert coordinator.owners(group_id) == before
        readers.append(Reader(coordinator, group_id, topic))
        wait_until(lambda: len(set(coordinator.owners(group_id).values())) == 3, "the third has a queue", between=poll)
        produce(50)
        wait_until(lambda: len(handed()) >= 600, "all is read", between=poll)
    finally:
        for reader in readers:
            reader.consumer.close()

    assert handed() == [(number, offset) for number in range(4) for offset in range(150)]
    its = [one for one in coordinator.decided if getattr(one, "group_id", None) == group_id]
    assert {one.rule for one in its if isinstance(one, Rejected)} == {"partition"}
    assert {one.reason for one in its if isinstance(one, Fenced)} <= {"left"}
    for rule in (broken_epochs, broken_ownership, broken_revocations, broken_offsets):
        assert rule(its) == []
    assert {one.shard.partition(".")[0] for one in its if isinstance(one, Handover)} == {
        f"groups-{partition_of(group_id.encode(), number)}" for number in (CONTROL_PARTITIONS, MORE)
    }


def test_a_fetch_that_waits_is_woken_by_the_new_shard(coordinator):
    """Its pull is held by the old shard when the number changes, and the next pull goes to the old partition first."""
    topic = coordinator.topic(16)
    moved = [n for n in range(16) if partition_of(Queue(topic, "", n).key.encode(), MORE) >= CONTROL_PARTITIONS]
    queue = Queue(topic, "", moved[0])
    connection = coordinator.connection
    consumer = Consumer(moving("fetching"), [topic], connection.bootstrap, prefix=connection.topics.prefix)
    found: list[list[int]] = []

    def fetch() -> None:
        offset = 0
        for _ in range(2):
            fetched = consumer.fetch(queue, offset, wait=60.0)
            found.append([message.offset() for message in fetched.messages])
            offset = fetched.next_offset

    with consumer:
        thread = threading.Thread(target=fetch)
        thread.start()
        wait_until(lambda: coordinator.pulls(queue) > 0, "the pull is held")
        coordinator.grow(MORE)
        began_s = time.monotonic()
        for end in (1, 2):
            wait_until(lambda: coordinator.pulls(queue) > 0, "the pull is held by the new shard")
            coordinator.produce(topic, queue.queue_id, 1)
            coordinator.report(Arrival(queue=queue, next_offset=end, observer="o1"))
            wait_until(lambda end=end: len(found) == end, "the fetch has returned")
        thread.join()

    assert found == [[0], [1]]
    assert time.monotonic() - began_s < 30, "it was woken, and did not wait for its timeout"
