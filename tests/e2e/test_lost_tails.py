"""Control topics that lose their last records, as by a power failure, while processes read them."""

import os
import struct
from functools import partial
from pathlib import Path

import pytest

from tests.support.systems.coordinator_thread import plane_of_its_own
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, close_producer
from wakeroll.decision_log import DecisionLog
from wakeroll_model.decisions import Membership
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker

pytestmark = [pytest.mark.e2e, pytest.mark.operate]

GROUP = "billing"


def keep(folder: Path, topic: str, count: int) -> None:
    """Truncate the log of each partition of a broker that does not run, to its first records."""
    for partition in folder.rglob(f"{topic}-*/00000000000000000000.log"):
        data, at = partition.read_bytes(), 0
        while at < len(data):
            base, length = struct.unpack(">qi", data[at : at + 12])
            if base >= count:
                break
            at += 12 + length
        os.truncate(partition, at)
        for index in partition.parent.glob("*index"):
            index.unlink()


def lose_tail(broker: EmbeddedBroker, topic: str, count: int) -> None:
    """Kill the broker, and start it with the first records of a topic's partitions."""
    broker.kill()
    keep(broker.folder, topic, count)
    broker.start()


def test_a_consumer_whose_inbox_lost_its_tail_rejoins(tmp_path):
    """Nobody can know which decisions for it were lost."""
    with plane_of_its_own(tmp_path) as (broker, plane):
        topic = plane.topic(2)
        lives: list[str] = []
        owned: set[int] = set()
        with Consumer(
            GROUP,
            [topic],
            broker.bootstrap,
            client_id="a",
            on_assigned=lambda _, queues: owned.update(queue.queue_id for queue in queues),
            on_revoked=lambda _, queues: owned.difference_update(queue.queue_id for queue in queues),
        ) as consumer:
            poll = partial(consumer.poll, 0.1)
            wait_until(lambda: len(owned) == 2, "it has both queues", between=poll)
            lives += {beat.instance_id for beat in plane.beats("a")}
            lose_tail(broker, plane.connection.topics.inbox, 0)
            plane.replace_producer()
            wait_until(
                lambda: {beat.instance_id for beat in plane.beats("a")} - set(lives), "it has rejoined", between=poll
            )
            wait_until(lambda: len(owned) == 2, "it has both queues again", between=poll)
        assert len(lives) == 1


def test_a_reader_of_decisions_whose_topic_lost_its_tail_reads_it_again(tmp_path):
    def joined(client_id: str, seq: int) -> bytes:
        decision = Membership(group_id=GROUP, client_id=client_id, change="joined", epoch=1)
        decision.shard, decision.seq = "groups-0.1", seq
        return encode_decision(decision)

    with EmbeddedBroker(tmp_path) as broker:
        connection = Connection(broker.bootstrap)
        ensure_topics(connection, partitions=1, inbox_partitions=1)
        topic = connection.topics.decisions

        def decide(*decisions: bytes) -> None:
            producer = connection.producer()
            for decision in decisions:
                producer.produce(topic, decision, key=GROUP.encode(), partition=0)
                assert producer.flush(60) == 0
            close_producer(producer, 1)

        decide(*(joined(f"old-{seq}", seq) for seq in range(1, 6)))
        consumer = connection.operators_consumer()
        log = DecisionLog.of_group(connection, consumer, GROUP, timeout=30, is_lasting=True)
        try:
            log.from_the_start()
            assert len(list(log.until_now())) == 5
            lose_tail(broker, topic, 2)
            decide(joined("new", 6))
            found: list[str] = []
            wait_until(
                lambda: "new" in found,
                "the present log is read",
                between=lambda: found.extend(one.client_id for one in log.wait(0.5)),
                state=lambda: found,
            )

            assert found == ["old-1", "old-2", "new"]
            assert log.was_replaced()
        finally:
            log.close()
            consumer.close()
