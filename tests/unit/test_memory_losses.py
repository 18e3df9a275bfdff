"""Losses of a log in `wakeroll.testing`: its consumers notice them as those of Kafka do."""

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from wakeroll import InvalidUsage
from wakeroll.connection import Connection
from wakeroll.testing import MemoryBroker

ORDERS = "orders"
QUEUE = (ORDERS, 0)


def broker_with(messages: int, *, leader_epochs: bool = True) -> MemoryBroker:
    """A broker with one queue of so many messages; the values are their numbers."""
    broker = MemoryBroker(leader_epochs=leader_epochs)
    broker.create_topic(ORDERS)
    for number in range(messages):
        broker.send(ORDERS, f"old{number}")
    return broker


def at(offset: int, leader_epoch: int = -1) -> TopicPartition:
    return TopicPartition(ORDERS, 0, offset, leader_epoch=leader_epoch)


def reader(broker: MemoryBroker, start: TopicPartition, **settings: object) -> Consumer:
    consumer = Connection(broker.bootstrap).consumer(**settings)
    consumer.incremental_assign([start])
    return consumer


def values(messages: list[Message]) -> list[str]:
    return [(message.value() or b"").decode() for message in messages]


def error_of(message: Message | None) -> int:
    error = None if message is None else message.error()
    assert error is not None, "an error was expected"
    return error.code()


def test_a_reader_notices_that_the_tail_was_lost_even_if_the_log_has_grown_past_it():
    with broker_with(10) as broker:
        consumer = reader(broker, at(0))
        assert values(consumer.consume(10, 0))[-1] == "old9"
        broker.truncate(QUEUE, 6)
        for number in range(9):
            broker.send(ORDERS, f"new{number}")

        assert error_of(consumer.poll(0)) == KafkaError._AUTO_OFFSET_RESET
        assert consumer.poll(0) is None, "it is not read on until it is assigned again"


def test_a_lenient_reader_goes_on_where_the_branches_part():
    with broker_with(10) as broker:
        consumer = reader(broker, at(0), **{"auto.offset.reset": "latest"})
        consumer.consume(10, 0)
        broker.truncate(QUEUE, 6)
        for number in range(9):
            broker.send(ORDERS, f"new{number}")

        assert values(consumer.consume(2, 0)) == ["new0", "new1"]


def test_an_assignment_is_not_validated_and_a_seek_is():
    """As in librdkafka: an offset to which a consumer is assigned may be that of another message."""
    with broker_with(10) as broker:
        broker.truncate(QUEUE, 6)
        for number in range(9):
            broker.send(ORDERS, f"new{number}")
        consumer = reader(broker, at(10, leader_epoch=0))

        assert values(consumer.consume(1, 0)) == ["new4"]
        consumer.seek(at(10, leader_epoch=0))
        assert error_of(consumer.poll(0)) == KafkaError._AUTO_OFFSET_RESET


def test_without_leader_epochs_only_an_offset_beyond_the_end_is_noticed():
    with broker_with(10, leader_epochs=False) as broker:
        consumer = reader(broker, at(0))
        assert [message.leader_epoch() for message in consumer.consume(10, 0)] == [None] * 10
        broker.truncate(QUEUE, 6)
        broker.send(ORDERS, "new")

        assert error_of(consumer.poll(0)) == KafkaError._AUTO_OFFSET_RESET


def test_an_election_loses_nothing_and_shows_in_the_messages():
    with broker_with(1) as broker:
        consumer = reader(broker, at(0))
        broker.elect(QUEUE)
        broker.send(ORDERS, "new")

        assert [message.leader_epoch() for message in consumer.consume(2, 0)] == [0, 1]


def test_a_reader_notices_that_its_next_message_expired():
    with broker_with(10) as broker:
        consumer = reader(broker, at(2))
        broker.expire(QUEUE, 5)

        assert error_of(consumer.poll(0)) == KafkaError._AUTO_OFFSET_RESET
        assert consumer.get_watermark_offsets(at(0)) == (5, 10)


def test_markers_take_offsets_and_are_not_delivered():
    with broker_with(2) as broker:
        assert [broker.send_marker(QUEUE), broker.send_marker(QUEUE)] == [2, 3]
        consumer = reader(broker, at(0), **{"enable.partition.eof": True})

        assert values(consumer.consume(2, 0)) == ["old0", "old1"]
        end = consumer.poll(0)
        assert end is not None
        assert (error_of(end), end.offset()) == (KafkaError._PARTITION_EOF, 4)
        assert consumer.poll(0) is None, "the end is reported once"


def test_a_loss_needs_an_offset_of_the_queue():
    with broker_with(3) as broker:
        for lose in (broker.truncate, broker.expire):
            with pytest.raises(InvalidUsage, match="has the offsets 0 to 3, not 4"):
                lose(QUEUE, 4)
        with pytest.raises(InvalidUsage, match="has no queue 1; it has 0 to 0"):
            broker.truncate((ORDERS, 1), 0)
