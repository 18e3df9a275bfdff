"""The two facts of Kafka's transactions for which wakeroll commits no offsets in them: docs/decisions/0011."""

import time

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.support.waiting import wait_until

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


def values(consumer: Consumer, count: int) -> list[bytes | None]:
    """Return this many values, as they are received."""
    found: list[bytes | None] = []

    def read() -> None:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            found.append(message.value())

    wait_until(lambda: len(found) >= count, f"{count} records are readable", between=read)
    return found


def reader_of(coordinator, topic: str, level: str) -> Consumer:
    consumer = coordinator.connection.consumer(**{"isolation.level": level})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def test_whoever_reads_uncommitted_records_sees_those_of_an_aborted_transaction(coordinator):
    """A commit in it would count although its output was discarded: messages would be lost."""
    topic = coordinator.topic(1)
    producer = coordinator.connection.producer(**{"transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"commit", partition=0)
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    consumer = reader_of(coordinator, topic, "read_uncommitted")

    assert values(consumer, 1) == [b"commit"]
    consumer.close()


def test_whoever_reads_committed_records_waits_for_the_open_transaction_of_a_stranger(coordinator):
    """In a shared control topic, one client would stop all groups of its partition."""
    topic = coordinator.topic(1)
    stranger = coordinator.connection.producer(**{"transactional.id": topic})
    stranger.init_transactions(PATIENCE_S)
    stranger.begin_transaction()
    stranger.produce(topic, b"commit", partition=0)
    stranger.flush(PATIENCE_S)
    other = coordinator.connection.producer()
    other.produce(topic, b"heartbeat of another group", partition=0)
    other.flush(PATIENCE_S)

    consumer = reader_of(coordinator, topic, "read_committed")
    end = time.monotonic() + 1.0  # nothing can be awaited: what is shown is that nothing comes
    received = [consumer.poll(0.1) for _ in iter(lambda: time.monotonic() < end, False)]
    assert [message for message in received if message is not None and message.error() is None] == []
    stranger.commit_transaction(PATIENCE_S)

    assert values(consumer, 2) == [b"commit", b"heartbeat of another group"]
    consumer.close()
