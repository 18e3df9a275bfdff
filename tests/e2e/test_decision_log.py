"""The record of decisions about a group, on a real broker."""

import uuid

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics, close_producer
from wakeroll.decision_log import DecisionLog
from wakeroll_model.decisions import Membership
from wakeroll_model.partitioner import partition_of
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.kafka.topic_admin import Cluster

GROUP = "billing"


def test_a_reader_follows_its_group_to_another_partition(broker):
    """`wakeroll reshard` adds partitions while processes such as `wakeroll wake` run."""
    connection = Connection(broker.bootstrap, topics=Topics(f"divided-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection, partitions=1)
    topic, key = connection.topics.decisions, GROUP.encode()

    def decide(seq: int, client_id: str, partitions: int) -> None:
        shard = f"groups-{partition_of(key, partitions)}.1"
        decision = Membership(shard=shard, seq=seq, group_id=GROUP, client_id=client_id, change="joined", epoch=seq)
        producer = connection.producer()  # a new one knows new partitions
        producer.produce(topic, encode_decision(decision), key=key, partition=partition_of(key, partitions))
        assert producer.flush(30) == 0
        close_producer(producer, 1)

    assert [partition_of(key, number) for number in (1, 8)] != [0, 0]
    decide(1, "a", 1)
    consumer = connection.operators_consumer()
    try:
        log = DecisionLog.of_group(connection, consumer, GROUP, timeout=30)
        log.from_the_start()
        assert [one.client_id for one in log.until_now()] == ["a"]
        assert Cluster(connection).grow([topic], 8) == {topic: None}
        found: list[str] = []

        def read() -> None:
            log.follow_the_group()
            found.extend(one.client_id for one in log.wait(0.5))

        read()
        decide(2, "b", 1)  # by the command itself, after it has added the partitions
        wait_until(lambda: found == ["b"], "the decision that the command appended", between=read, state=lambda: found)
        decide(3, "c", 1)
        decide(4, "d", 8)
        decide(5, "e", 8)
        wait_until(lambda: "e" in found, "decisions in the new partition", between=read, state=lambda: found)
        assert found == ["b", "c", "d", "e"]
        decide(6, "x", 1)
        decide(7, "f", 8)
        wait_until(lambda: "f" in found, "a decision after the old partition's", between=read, state=lambda: found)
        assert "x" not in found
    finally:
        consumer.close()
