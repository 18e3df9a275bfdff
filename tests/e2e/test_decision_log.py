"""The record of decisions about a group, on a real broker."""

import uuid

from model.decisions import Membership
from model.partitioner import partition_of
from model.replay import encode_decision
from pipeline.kafka.control_topics import ensure_topics
from pipeline.kafka.topic_admin import Cluster
from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics, close_producer
from wakeroll.decision_log import DecisionLog, Said

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
        assert list(log.follow_the_group()) == []

        decide(2, "b", 1)
        assert Cluster(connection).grow([topic], 8) == {topic: None}
        rest: list[Said] = []
        wait_until(
            lambda: rest != [],
            "the reader sees the new partitions",
            between=lambda: rest.extend(log.follow_the_group()),
            state=lambda: rest,
        )
        decide(1, "c", 8)
        assert [one.client_id for one in rest] == ["b"]
        found: list[Said] = []
        wait_until(
            lambda: found != [], "the next decision", between=lambda: found.extend(log.wait(1)), state=lambda: found
        )
        assert [one.client_id for one in found] == ["c"]
    finally:
        consumer.close()
