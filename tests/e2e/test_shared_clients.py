"""The soak's consumers share the Kafka connections of their process, and behave as with connections of their own."""

import threading
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, Message, TopicPartition

from bench.running_system import make_topic
from bench.soak.shared_clients import SharedClients
from bench.soak.shared_consumer import ConsumerShare
from tests.support.waiting import PATIENCE_S, wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll_pipeline.local.broker import EmbeddedBroker

pytestmark = pytest.mark.e2e


@pytest.fixture
def connection(broker: EmbeddedBroker) -> Iterator[Connection]:
    """Clients of this connection share Kafka's clients."""
    with SharedClients(broker.bootstrap):
        yield Connection(broker.bootstrap)


@pytest.fixture
def topic(connection: Connection) -> str:
    """A topic with two partitions of ten messages each, whose values are their offsets."""
    name = f"shared-{uuid.uuid4().hex[:6]}"
    make_topic(connection, name, 2)
    produce(connection, name, range(10))
    return name


def produce(connection: Connection, topic: str, numbers: range) -> None:
    """Store these numbers in both partitions."""
    producer = connection.producer()
    for number in numbers:
        for partition in range(2):
            producer.produce(topic, value=b"%d" % number, partition=partition)
    assert producer.flush(PATIENCE_S) == 0


def taken(consumer: ConsumerShare, count: int) -> list[tuple[int | None, int]]:
    """Return the partition and number of the next messages."""
    found: list[Message] = []

    def take() -> bool:
        found.extend(consumer.consume(count - len(found), 0.1))
        return len(found) == count

    wait_until(take, f"there are {count} messages", state=lambda: [message.offset() for message in found])
    assert [message.error() for message in found] == [None] * count
    return [(message.partition(), int(message.value() or b"")) for message in found]


def numbers(consumer: ConsumerShare, count: int) -> list[int]:
    """Return the next numbers of a consumer of one partition."""
    return [number for _, number in taken(consumer, count)]


def test_two_consumers_of_one_partition_each_read_from_their_own_offset(connection, topic):
    """An inbox partition has many clients: one that joins later at a lower offset must not disturb the others."""
    late, early = connection.consumer(), connection.consumer()
    late.assign([TopicPartition(topic, 0, 8)])
    assert numbers(late, 2) == [8, 9]

    early.assign([TopicPartition(topic, 0, 3)])

    assert numbers(early, 7) == [3, 4, 5, 6, 7, 8, 9]
    produce(connection, topic, range(10, 12))
    assert numbers(late, 2) == [10, 11]
    assert numbers(early, 2) == [10, 11]


def test_a_consumer_goes_on_when_another_leaves_its_partition(connection, topic):
    """A client that leaves takes its reading with it, and only its own."""
    stays, leaves = connection.consumer(), connection.consumer()
    for consumer in (stays, leaves):
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        assert numbers(consumer, 10) == list(range(10))

    leaves.close()
    produce(connection, topic, range(10, 12))

    assert numbers(stays, 2) == [10, 11]
    assert leaves.consume(1, 0) == []


def test_a_paused_partition_is_read_on_where_it_was_paused(connection, topic):
    """`hold_back` pauses queues; messages that were received but not returned must come after `resume`."""
    consumer = connection.consumer()
    consumer.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
    seen = taken(consumer, 3)
    paused = [TopicPartition(topic, 0)]
    consumer.pause(paused)
    other = [number for partition, number in seen if partition == 1]
    assert taken(consumer, 10 - len(other)) == [(1, number) for number in range(len(other), 10)]

    consumer.resume(paused)

    first = len(seen) - len(other)
    assert taken(consumer, 10 - first) == [(0, number) for number in range(first, 10)]
    assert [at.offset for at in consumer.position([*paused, TopicPartition(topic, 1)])] == [10, 10]


def test_a_partition_that_moves_back_loses_and_mixes_nothing(connection, topic):
    """`Reader` moves a queue by unassign and assign; messages of the old position must not come afterwards."""
    consumer = connection.consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert numbers(consumer, 1) == [0]  # others are received and wait

    consumer.incremental_unassign([TopicPartition(topic, 0)])
    consumer.incremental_assign([TopicPartition(topic, 0, 2)])
    assert numbers(consumer, 8) == list(range(2, 10))
    consumer.seek(TopicPartition(topic, 0, 5))

    assert numbers(consumer, 5) == list(range(5, 10))


def test_an_offset_that_does_not_exist_is_reported_to_each_consumer_which_then_reads_on(connection, topic):
    """The SDK assigns the first message after this error; Kafka's client has stopped to read the partition."""
    consumers = [connection.consumer(), connection.consumer()]
    for consumer in consumers:
        consumer.assign([TopicPartition(topic, 0, 500)])

    for consumer in consumers:
        error = wait_until(lambda consumer=consumer: consumer.poll(0.1), "the error is reported").error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
    for consumer in consumers:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    assert [numbers(consumer, 10) for consumer in consumers] == [list(range(10))] * 2


def test_an_offset_that_does_not_exist_is_reported_only_to_the_consumer_that_asked_for_it(connection, topic):
    """One client's deleted position must not make the others of its inbox partition start over."""
    lost, fine = connection.consumer(), connection.consumer()
    lost.assign([TopicPartition(topic, 0, 500)])
    error = wait_until(lambda: lost.poll(0.1), "the error is reported").error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    fine.assign([TopicPartition(topic, 0, 4)])
    assert numbers(fine, 6) == list(range(4, 10))

    lost.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    assert numbers(lost, 10) == list(range(10))
    produce(connection, topic, range(10, 12))
    assert numbers(fine, 2) == [10, 11]


def test_a_consumer_below_the_first_offset_does_not_stop_the_others(connection, topic):
    """Retention deletes the oldest records: a client that was away for long must not disturb one that was not."""
    fine, lost = connection.consumer(), connection.consumer()
    fine.assign([TopicPartition(topic, 0, 8)])
    assert numbers(fine, 2) == [8, 9]
    admin = connection.admin()  # answers come only while it exists
    for answer in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        answer.result(PATIENCE_S)

    lost.assign([TopicPartition(topic, 0, 2)])

    error = wait_until(lambda: lost.poll(0.1), "the error is reported").error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    produce(connection, topic, range(10, 12))
    assert numbers(fine, 2) == [10, 11]


def test_a_receipt_arrives_in_the_poll_of_the_producer_that_produced(connection, topic):
    """The SDK's callbacks take its locks: they must run in its own thread, and never in that of another client."""
    ours, others = connection.producer(), connection.producer()
    receipts: list[tuple[object, int]] = []
    ours.produce(topic, b"x", partition=0, on_delivery=lambda error, _: receipts.append((error, threading.get_ident())))
    assert len(ours) == 1

    assert others.flush(PATIENCE_S) == 0
    assert receipts == []
    assert ours.flush(PATIENCE_S) == 0

    assert receipts == [(None, threading.get_ident())]
    assert len(ours) == 0


def test_purge_forgets_the_receipts_of_one_producer_only(connection, topic):
    """A client that leaves purges its outbox; heartbeats of others must still be acknowledged."""
    ours, others = connection.producer(), connection.producer()
    receipts: list[str] = []
    ours.produce(topic, b"x", partition=0, on_delivery=lambda *_: receipts.append("ours"))
    others.produce(topic, b"x", partition=0, on_delivery=lambda *_: receipts.append("others"))

    ours.purge()

    assert (ours.flush(PATIENCE_S), others.flush(PATIENCE_S)) == (0, 0)
    assert receipts == ["others"]


def test_flush_calls_back_for_a_receipt_that_arrives_during_a_callback(connection, topic):
    """`Outbox` counts what flush returns as undelivered: it would report a stored heartbeat as lost."""
    ours, others = connection.producer(), connection.producer()
    receipts: list[str] = []

    def first(*_: object) -> None:
        receipts.append("first")
        ours.produce(topic, b"x", partition=0, on_delivery=lambda *_: receipts.append("second"))
        # Acknowledged in order: when this one of the same partition is, the receipt of the second has arrived.
        others.produce(topic, b"x", partition=0)
        assert others.flush(PATIENCE_S) == 0

    ours.produce(topic, b"x", partition=0, on_delivery=first)

    assert ours.flush(PATIENCE_S) == 0
    assert receipts == ["first", "second"]


def test_queries_see_the_partitions(connection, topic):
    """Start offsets and end offsets are queried on a connection that reads nothing."""
    consumer = connection.consumer()

    assert consumer.get_watermark_offsets(TopicPartition(topic, 1), PATIENCE_S) == (0, 10)
    found = consumer.offsets_for_times([TopicPartition(topic, 0, OFFSET_BEGINNING)], timeout=PATIENCE_S)
    assert [at.offset for at in found] == [0]
    assert sorted(consumer.list_topics(topic, PATIENCE_S).topics[topic].partitions) == [0, 1]


def test_after_a_broker_restart_consumers_read_on_and_receipts_come(tmp_path):
    """The soak kills the broker: shared connections must come back as those of a client of its own do."""
    with EmbeddedBroker(tmp_path / "broker") as broker, SharedClients(broker.bootstrap):
        connection = Connection(broker.bootstrap)
        make_topic(connection, "sent", 2)
        consumers = [connection.consumer(), connection.consumer()]
        for number, consumer in enumerate(consumers):
            consumer.assign([TopicPartition("sent", number, 0)])
        produce(connection, "sent", range(2))
        assert [numbers(consumer, 2) for consumer in consumers] == [[0, 1]] * 2

        broker.kill()
        producer = connection.producer()
        producer.produce("sent", b"2", partition=0)
        producer.produce("sent", b"2", partition=1)
        broker.start()

        assert producer.flush(PATIENCE_S) == 0
        errors = [message for consumer in consumers for message in iter(lambda c=consumer: c.poll(1), None)]
        assert [int(message.value() or b"") for message in errors if message.error() is None] == [2, 2]


def test_clients_of_the_sdk_share_the_queues_of_a_group(coordinator):
    """The shares are enough for the SDK: two clients of one process own one queue each, and all messages arrive."""
    connection = coordinator.connection
    group, topic = f"soak-{uuid.uuid4().hex[:6]}", coordinator.topic(2)
    handled: dict[str, list[int]] = {"one": [], "two": []}
    owned: dict[str, int] = dict.fromkeys(handled, 0)
    stopping = threading.Event()
    closed = []

    def work(name: str) -> None:
        names = {"prefix": connection.topics.prefix, "client_id": f"{group}-{name}"}
        with Consumer(group, [topic], connection.bootstrap, consume_from="first", **names) as consumer:
            while not stopping.is_set():
                message = consumer.poll(0.2)
                owned[name] = len(consumer.assignment())
                if message is not None and message.error() is None:
                    handled[name].append(int(message.value() or b""))
        closed.append(name)

    with SharedClients(connection.bootstrap):
        threads = [threading.Thread(target=work, args=[name]) for name in handled]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: owned == {"one": 1, "two": 1}, "each client owns a queue", state=lambda: owned)
            produce(connection, topic, range(5))
            wait_until(lambda: sum(map(len, handled.values())) >= 10, "all is handled", state=lambda: handled)
        finally:
            stopping.set()
            for thread in threads:
                thread.join(PATIENCE_S)

    assert handled == {"one": list(range(5)), "two": list(range(5))}
    assert sorted(closed) == ["one", "two"]
