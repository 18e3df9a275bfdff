"""The filters of `poll` on a real broker: what is delivered, and what counts as processed."""

import asyncio
import time
from datetime import UTC, datetime

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from tests.support.waiting import wait_until
from wakeroll import Consumer, Producer, Sql92

pytestmark = pytest.mark.e2e

PATIENCE_S = 120.0


@pytest.fixture
def send(coordinator):
    """Send one message to queue 0 of a topic, with its tag as its value, and wait until Kafka has it."""
    bootstrap, prefix = coordinator.connection.bootstrap, coordinator.connection.topics.prefix
    with Producer(bootstrap, prefix=prefix) as producer:

        def send(topic: str, tags: str, **properties: str) -> None:
            producer.send(topic, tags, partition=0, tags=tags, properties=properties)
            assert producer.flush(PATIENCE_S)

        yield send


def consumer_of(coordinator, group_id: str, topics) -> Consumer:
    connection = coordinator.connection
    return Consumer(
        group_id,
        topics,
        connection.bootstrap,
        prefix=connection.topics.prefix,
        consume_from="first",
        commit_interval=0.2,
    )


def delivered(consumer: Consumer, last: bytes) -> list[bytes]:
    """Poll until the message with this value is delivered; return the values of all messages."""
    values: list[bytes] = []
    deadline = time.monotonic() + PATIENCE_S
    while last not in values:
        assert time.monotonic() < deadline, f"{last!r} was not delivered; delivered: {values}"
        if (message := consumer.poll(0.2)) is not None:
            values.append(message.value())
    return values


def test_poll_delivers_the_tags_that_the_group_subscribes(coordinator, group_id, send):
    """The tags Aa and BB have the same code in RocketMQ's queues, so only the header decides between them."""
    topic = coordinator.topic(1)
    for tags in ("lost", "paid", "", "BB", "Aa", "refunded"):
        send(topic, tags)

    with consumer_of(coordinator, group_id, {topic: "paid || refunded || Aa"}) as consumer:
        assert delivered(consumer, b"refunded") == [b"paid", b"Aa", b"refunded"]


def test_a_message_has_the_time_the_headers_and_the_types_that_its_producer_gave(coordinator, group_id):
    """What Kafka's own producer sends can be sent, and a condition compares a number as a number."""
    topic, at = coordinator.topic(1), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    connection = coordinator.connection

    async def send_all() -> list[tuple[int | None, int | None]]:
        with Producer(connection.bootstrap, prefix=connection.topics.prefix) as producer:
            await producer.send_and_wait(topic, b"small", properties={"amount": 9, "price": 0.5, "paid": False})
            trace = [("trace", b"\xff\x00"), ("trace", None)]
            wanted = {"amount": 12, "price": 12.5, "paid": True}
            last = await producer.send_and_wait(topic, b"wanted", properties=wanted, headers=trace, timestamp=at)
            return [(last.partition(), last.offset())]

    assert asyncio.run(send_all()) == [(0, 1)]
    condition = Sql92("amount > 10 AND price > 10.0 AND paid = TRUE")
    with consumer_of(coordinator, group_id, {topic: condition}) as consumer:
        message = wait_until(lambda: consumer.poll(0.2), "the message is delivered")

    assert message.value() == b"wanted"
    assert message.timestamp() == (TIMESTAMP_CREATE_TIME, int(at.timestamp() * 1_000))
    assert message.headers() == [
        ("amount", b"12"),
        ("price", b"12.5"),
        ("paid", b"true"),
        ("trace", b"\xff\x00"),
        ("trace", None),
    ]


def test_poll_delivers_the_messages_whose_properties_satisfy_a_condition(coordinator, group_id, send):
    topic, other = coordinator.topic(1), coordinator.topic(1)
    send(topic, "small", amount="5", region="EU")
    send(topic, "none", region="EU")
    send(topic, "odd", amount="many", region="EU")
    send(topic, "far", amount="12", region="US")
    send(topic, "wanted", amount="12", region="EU")
    send(other, "unfiltered")

    with consumer_of(coordinator, group_id, {topic: Sql92("amount > 10 AND region = 'EU'"), other: "*"}) as consumer:
        values = delivered(consumer, b"wanted")
        if b"unfiltered" not in values:
            values += delivered(consumer, b"unfiltered")

    assert sorted(values) == [b"unfiltered", b"wanted"]


def test_messages_that_do_not_match_count_as_processed(coordinator, group_id, send):
    """The group's offset passes them without a matching message behind them; a restart does not read them again."""
    topic = coordinator.topic(1)
    for tags in ("paid", "lost", "lost"):
        send(topic, tags)

    with consumer_of(coordinator, group_id, {topic: "paid"}) as consumer:
        assert delivered(consumer, b"paid") == [b"paid"]
        deadline = time.monotonic() + PATIENCE_S
        while coordinator.offsets(group_id, topic) != {0: 3}:
            assert time.monotonic() < deadline, f"committed: {coordinator.offsets(group_id, topic)}"
            assert consumer.poll(0.1) is None

    send(topic, "paid")
    with consumer_of(coordinator, group_id, {topic: "*"}) as unfiltered:
        message = None
        while message is None:
            assert time.monotonic() < deadline
            message = unfiltered.poll(0.2)
        assert message.offset() == 3
