"""What the mirror keeps of the decisions that it reads, without a broker."""

import re
import threading
from typing import Any, cast

import msgspec
import pytest

from wakeroll.connection import Connection
from wakeroll_model.decisions import Offset
from wakeroll_model.queue import Queue
from wakeroll_pipeline.metrics.observer_metrics import ObserverMetrics
from wakeroll_pipeline.observer.offset_mirror import OffsetMirror

A, B = Queue("orders", "", 0), Queue("orders", "", 1)


class Record:
    """A record of the decisions topic."""

    def __init__(self, partition: int, offset: int, decision: Offset) -> None:
        self._at = partition, offset
        self._value = msgspec.json.encode(decision)

    def partition(self) -> int:
        return self._at[0]

    def offset(self) -> int:
        return self._at[1]

    def value(self) -> bytes:
        return self._value


def decision(group_id: str, queue: Queue, offset: int, seq: int, era: int = 1) -> Offset:
    shard = f"groups-0.{era}"
    return Offset(group_id=group_id, queue=queue, client_id="c", offset=offset, epoch=1, shard=shard, seq=seq)


@pytest.fixture
def mirror() -> OffsetMirror:
    return OffsetMirror(Connection("127.0.0.1:1"), re.compile(".*"), threading.Event(), ObserverMetrics())


def read(mirror: OffsetMirror, *records: tuple[int, int, Offset]) -> dict[str, dict[Queue, int]]:
    for partition, offset, said in records:
        mirror._note(cast(Any, Record(partition, offset, said)))
    return {
        name: {queue: kept.offset for queue, kept in of_group.items()} for name, of_group in mirror._pending.items()
    }


def test_a_group_whose_partition_is_read_later_keeps_its_offsets(mirror):
    """The partitions of a backlog arrive in any order; the older decisions of a shard may come from the second one."""
    assert read(mirror, (0, 0, decision("a", A, 7, seq=100)), (1, 0, decision("b", B, 3, seq=5))) == {
        "a": {A: 7},
        "b": {B: 3},
    }


def test_a_repetition_of_older_offsets_is_skipped_and_a_reset_backwards_is_kept(mirror):
    said = [decision("a", A, 7, seq=1), decision("a", A, 9, seq=2), decision("a", A, 2, seq=3)]
    assert read(mirror, (0, 0, said[0]), (0, 1, said[1]), (0, 2, said[0])) == {"a": {A: 9}}
    assert read(mirror, (0, 3, said[2]), (0, 4, said[1])) == {"a": {A: 2}}
    assert read(mirror, (0, 5, decision("a", A, 1, seq=1, era=2)), (0, 6, said[2])) == {"a": {A: 1}}


def test_what_waits_for_kafka_grows_by_queues_only(mirror):
    """A Kafka group with members may stay for days."""
    for number in range(10_000):
        read(mirror, (0, number, decision("a", (A, B)[number % 2], number, seq=number + 1)))

    assert len(mirror._pending["a"]) == 2
    assert len(mirror._newest) == 1
