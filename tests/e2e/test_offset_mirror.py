"""The mirror of offsets: suspended while another one goes on, and while `wakeroll reshard` adds partitions."""

import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import FrameType
from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import NewTopic
from msgspec import UNSET

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics, close_producer
from wakeroll.errors import NotReachable
from wakeroll.kafka_groups import KafkaGroups
from wakeroll.monotonic_clock import now_ms
from wakeroll.topic_partitions import learn_partitions
from wakeroll_model.decisions import Offset
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_model.slices import cut
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.offset_mirror import RECENT_MS, OffsetMirror

pytestmark = pytest.mark.e2e


class SuspendedMirror:
    """A mirror in a thread, which a debugger stops: before it writes an offset, and again before it reads on."""

    def __init__(self, connection: Connection) -> None:
        self.stop = threading.Event()
        self.stopped, self.resumed = threading.Semaphore(0), threading.Semaphore(0)
        self._mirror = OffsetMirror(connection, re.compile(".*"), self.stop, ObserverMetrics(mirrors=True))
        self._stops: list[Callable[[FrameType], bool]] = [
            lambda frame: frame.f_code is OffsetMirror._write.__code__ and bool(self._mirror._pending),
            lambda frame: frame.f_code is OffsetMirror._receive.__code__,
        ]
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        sys.settrace(self._trace)
        self._mirror.run()

    def _trace(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._stops and self._stops[0](frame):
            del self._stops[0]
            self.stopped.release()
            self.resumed.acquire()


@contextmanager
def mirroring(connection: Connection) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=OffsetMirror(connection, re.compile(".*"), stop, ObserverMetrics()).run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def offset_in(kafka: KafkaGroups, group_id: str, queue: Queue) -> tuple[int | None, str]:
    """Return the offset of Kafka's group and its text; a broker that has just started refuses to tell them."""
    try:
        found = kafka.stored(group_id)
    except NotReachable:
        return None, ""
    there = None if isinstance(found, KafkaError) else found.get(queue)
    return (None, "") if there is None else (there.offset, there.text)


@pytest.fixture
def connection(broker, tmp_path) -> Connection:
    connection = Connection(broker.bootstrap, topics=Topics(tmp_path.name))
    ensure_topics(connection, partitions=1, inbox_partitions=1)
    assert Cluster(connection).create([NewTopic(f"{tmp_path.name}-orders", 1, 1)]) == {f"{tmp_path.name}-orders": None}
    return connection


def test_a_mirror_follows_the_partitions_that_a_reshard_adds(connection, tmp_path):
    """Without a restart; a group that moves to a new partition goes on there."""
    group_id, orders = f"{tmp_path.name}-billing", Queue(f"{tmp_path.name}-orders", "", 0)
    kafka, producer = KafkaGroups(connection, 30), connection.producer()

    def commit(offset: int, partition: int, seq: int) -> None:
        decision = Offset(
            shard=f"groups-{partition}.1",
            seq=seq,
            group_id=group_id,
            queue=orders,
            client_id="c",
            offset=offset,
            epoch=1,
        )
        producer.produce(connection.topics.decisions, encode_decision(decision), key=group_id, partition=partition)
        assert producer.flush(60) == 0

    def mirrored() -> int | None:
        return offset_in(kafka, group_id, orders)[0]

    commit(5, partition=0, seq=1)
    with mirroring(connection):
        wait_until(lambda: mirrored() == 5, "the offset is mirrored", state=mirrored)
        topic = connection.topics.decisions
        assert Cluster(connection).grow([topic], 4) == {topic: None}
        learn_partitions(producer, topic)
        commit(9, partition=3, seq=2**31)
        wait_until(lambda: mirrored() == 9, "the offset in the new partition is mirrored", state=mirrored)
    close_producer(producer, 1)


def test_a_mirror_that_wakes_up_writes_nothing_that_it_knew_before(connection, tmp_path):
    """Otherwise scalers and lag exporters would see messages that were consumed as waiting."""
    group_id, orders = f"{tmp_path.name}-billing", Queue(f"{tmp_path.name}-orders", "", 0)
    kafka, producer = KafkaGroups(connection, 30), connection.producer()

    def commit(offset: int, seq: int) -> None:
        decision = Offset(
            shard="groups-0.1", seq=seq, group_id=group_id, queue=orders, client_id="c", offset=offset, epoch=1
        )
        producer.produce(connection.topics.decisions, encode_decision(decision), key=group_id, partition=0)
        assert producer.flush(60) == 0

    def mirrored() -> int | None:
        return offset_in(kafka, group_id, orders)[0]

    commit(5, seq=1)
    slow = SuspendedMirror(connection)
    slow.thread.start()
    slow.stopped.acquire()
    since_ms = now_ms()
    commit(9, seq=2)
    with mirroring(connection):
        wait_until(lambda: mirrored() == 9, "the other mirror has written the newer offset", state=mirrored)
    wait_until(lambda: now_ms() - since_ms > RECENT_MS, "the mirror is suspended for long")
    slow.resumed.release()
    slow.stopped.acquire()
    found = mirrored()
    slow.stop.set()
    slow.resumed.release()
    slow.thread.join()
    close_producer(producer, 1)

    assert found == 9


def test_of_a_partition_in_slices_the_lowest_offset_is_mirrored_also_after_a_restart(connection, tmp_path):
    """A mirror that starts does not read the offsets again of slices that have not advanced since."""
    group_id, orders = f"{tmp_path.name}-billing", Queue(f"{tmp_path.name}-orders", "", 0)
    kafka, producer, numbers = KafkaGroups(connection, 30), connection.producer(), count(1)

    def say(queue: Queue, offset: int, *, deleted: bool = False) -> None:
        decision = Offset(
            shard="groups-0.1",
            seq=next(numbers),
            group_id=group_id,
            queue=queue,
            client_id="c",
            offset=offset,
            epoch=1,
            deleted=deleted or UNSET,
        )
        producer.produce(connection.topics.decisions, encode_decision(decision), key=group_id, partition=0)
        assert producer.flush(60) == 0

    def is_mirrored(offset: int, text: str) -> None:
        """Let a new mirror read on until Kafka's group has this."""
        with mirroring(connection):
            wait_until(
                lambda: offset_in(kafka, group_id, orders) == (offset, text),
                f"{offset} is mirrored",
                state=lambda: offset_in(kafka, group_id, orders),
            )

    left, right = cut(orders, 2)
    say(orders, 100)
    is_mirrored(100, "wakeroll")
    for queue in (left, right):
        say(queue, 100)
    say(orders, 100, deleted=True)
    say(left, 150)
    is_mirrored(100, "wakeroll 0/2=150 1/2=100")
    say(left, 170)
    is_mirrored(100, "wakeroll 0/2=170 1/2=100")
    say(right, 160)
    is_mirrored(160, "wakeroll 0/2=170 1/2=160")
    say(orders, 160)
    for queue in (left, right):
        say(queue, 0, deleted=True)
    is_mirrored(160, "wakeroll")
    close_producer(producer, 1)
