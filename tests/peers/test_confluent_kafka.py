"""Each call of `confluent_kafka.Consumer`, and what a user finds here: docs/from-confluent-kafka.md has the table."""

import sys
import time
from collections.abc import Callable

import confluent_kafka
import pytest
from confluent_kafka import Message

from tests.support.closed_port import closed_port
from tests.support.peer_tables import answers, check_table, rows_of
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage, NotReachable, Producer, Queue

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
EXTRA = (
    "Consumer(config)",
    "__enter__",
    "__exit__",
    "Message.error",
    "on_assign",
    "on_revoke",
    "on_lost",
    "on_commit",
    "error_cb",
)
"""Rows about what is no method of theirs."""


def received(consumer: Consumer, count: int) -> list[Message]:
    """Poll so many messages."""
    found: list[Message] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(found) < count and time.monotonic() < deadline:
        if (message := consumer.poll(1.0)) is not None:
            found.append(message)
    assert len(found) == count
    return found


def following(consumer: Consumer, queue: tuple[str, int]) -> int:
    """Return the offset of the next message of a queue."""
    while True:
        [message] = received(consumer, 1)
        if message.partition() == queue[1]:
            return message.offset()


@answers("poll", "Message.error", "__enter__", "__exit__", "assignment", "position", "memberid")
def test_poll_returns_messages_of_kafka_and_none_when_there_are_none(consumer_of, topic):
    """Their `test_basic_api`: a message is a `confluent_kafka.Message`, and never an error."""
    with consumer_of(client_id=f"{topic}-c1") as consumer:
        messages = received(consumer, 20)

        assert consumer.poll(0.1) is None
        assert {type(message) for message in messages} == {Message}
        assert {message.error() for message in messages} == {None}
        assert {message.topic() for message in messages} == {topic}
        for partition in (0, 1):
            offsets = [message.offset() for message in messages if message.partition() == partition]
            assert offsets == list(range(10))
        assert consumer.assignment() == [Queue(topic, "", 0), Queue(topic, "", 1)]
        assert consumer.position((topic, 0)) == 10
        assert consumer.client_id == f"{topic}-c1"


@answers("consume")
def test_consume_returns_at_most_so_many_messages(consumer_of):
    with consumer_of() as consumer:
        found: list[Message] = []
        while len(found) < 20:
            some = consumer.consume(num_messages=7, timeout=5.0)
            assert len(some) <= 7
            found += some

        assert consumer.consume(num_messages=7, timeout=0.1) == []
        for wrong in (-100, 0, 1_000_001):
            with pytest.raises(InvalidUsage, match="num_messages"):
                consumer.consume(num_messages=wrong)


@answers("commit", "committed", "on_commit")
def test_commit_takes_what_was_received_a_message_or_offsets(consumer_of, coordinator, group_id, topic):
    told: list[tuple[bool, dict[Queue, int]]] = []
    first, second = Queue(topic, "", 0), Queue(topic, "", 1)
    with consumer_of() as consumer:
        messages = received(consumer, 20)
        assert consumer.committed(first) in (None, 0)
        third = next(message for message in messages if (message.partition(), message.offset()) == (0, 3))
        assert consumer.commit(message=third)
        assert consumer.committed(first) == 4
        assert consumer.commit(offsets={first: 6, second: (7, "batch 12")})
        assert (consumer.committed(first), consumer.committed(second)) == (6, 7)
        with pytest.raises(InvalidUsage, match="beyond what was delivered"):
            consumer.commit(offsets={first: 11})
        for partition in (0, 1):
            coordinator.produce(topic, partition, 1)
        received(consumer, 2)
        assert consumer.commit(asynchronous=True, on_commit=lambda *answer: told.append(answer))
        wait_until(lambda: bool(told), "on_commit is called", between=lambda: consumer.poll(0.1))

        assert told == [(True, {first: 11, second: 11})]
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 11, 1: 11}, "all is committed")


@answers("store_offsets")
def test_a_message_is_done_when_the_application_says_so(consumer_of, topic):
    """Their `enable.auto.offset.store=false`; here, messages may be done in any order."""
    with consumer_of(marks_done=True) as consumer:
        messages = [message for message in received(consumer, 20) if message.partition() == 0]
        assert consumer.done(*messages[1:4])
        assert consumer.commit()
        assert consumer.committed((topic, 0)) in (None, 0)
        assert consumer.done(messages[0])
        assert consumer.commit()
        assert consumer.committed((topic, 0)) == 4


@answers("seek")
def test_seek_reads_on_elsewhere(consumer_of, topic):
    with consumer_of() as consumer:
        received(consumer, 20)
        for place, offset in ((7, 7), ("first", 0)):
            consumer.seek((topic, 0), place)
            assert following(consumer, (topic, 0)) == offset
        consumer.seek((topic, 0), "last")
        assert consumer.position((topic, 0)) == 10
        with pytest.raises(InvalidUsage, match="does not read"):
            consumer.seek((topic, 9), 0)


@answers("pause", "resume")
def test_a_queue_that_is_paused_stays_assigned(consumer_of, coordinator, topic):
    with consumer_of() as consumer:
        received(consumer, 20)
        consumer.pause([(topic, 0)])
        for partition in (0, 1):
            coordinator.produce(topic, partition, 1)
        [other] = received(consumer, 1)
        assert (other.partition(), consumer.poll(0.5)) == (1, None)
        assert Queue(topic, "", 0) in consumer.assignment()
        consumer.resume([(topic, 0)])
        [message] = received(consumer, 1)
        assert (message.partition(), message.offset()) == (0, 10)


@answers("get_watermark_offsets", "offsets_for_times")
def test_offsets_of_kafka_are_those_of_any_queue(consumer_of, topic):
    queue = Queue(topic, "", 0)
    with consumer_of() as consumer:
        message = next(one for one in received(consumer, 20) if one.partition() == 0 and one.offset() == 4)
        at_ms = message.timestamp()[1]
        [found] = consumer.offsets_for_times({queue: at_ms}).values()

        assert (consumer.first_offset(queue), consumer.end_offset(queue)) == (0, 10)
        assert found <= 4
        assert consumer.offsets_for_times({queue: 4_000_000_000_000}) == {queue: 10}


@answers("on_assign", "on_revoke", "on_lost")
def test_callbacks_tell_which_queues_begin_and_end(consumer_of, topic):
    """Theirs are arguments of `subscribe`; ours may also return where to start."""
    told: list[tuple[str, list[str]]] = []

    def note(kind: str) -> Callable[[Consumer, list[Queue]], None]:
        return lambda _, queues: told.append((kind, [str(queue) for queue in queues]))

    def begin(consumer: Consumer, queues: list[Queue]) -> dict[Queue, int]:
        note("assigned")(consumer, queues)
        return dict.fromkeys(queues, 8)

    consumer = consumer_of(on_assigned=begin, on_revoked=note("revoked"), on_lost=note("lost"))
    consumer.join()
    assert {message.offset() for message in received(consumer, 4)} == {8, 9}
    consumer.close()

    both = [f"{topic}-0", f"{topic}-1"]
    assert sorted(queue for kind, queues in told if kind == "assigned" for queue in queues) == both
    assert sorted(queue for kind, queues in told if kind == "revoked" for queue in queues) == both
    assert "lost" not in {kind for kind, _ in told}


def test_no_callback_may_poll(consumer_of):
    """Their tests of reentrancy: it is an error of the application, and named as one."""
    consumer = consumer_of(on_assigned=lambda consumer, _: consumer.poll(0))
    with pytest.raises(InvalidUsage, match=r"poll\(\) was called by a callback"):
        received(consumer, 1)


@answers("close")
def test_after_close_every_call_is_refused_and_close_is_not(consumer_of):
    """Theirs raises RuntimeError for a second `close`."""
    consumer = consumer_of()
    consumer.close()
    consumer.close()
    for call in (consumer.poll, consumer.consume, consumer.commit, consumer.assignment):
        with pytest.raises(InvalidUsage, match="this Consumer is closed"):
            call()


@answers("subscribe")
def test_topics_change_while_it_reads(consumer_of, coordinator):
    other = coordinator.topic(1)
    with consumer_of() as consumer:
        received(consumer, 20)
        consumer.subscribe([other])
        wait_until(
            lambda: [str(queue) for queue in consumer.assignment()] == [f"{other}-0"],
            "it reads the other topic",
            between=lambda: consumer.poll(0.1),
        )


@answers("Consumer(config)", "error_cb")
def test_settings_are_checked_when_the_object_is_created(consumer_of, topic):
    """Theirs takes a configuration with any setting, and connects later."""
    statistics: list[str] = []
    with consumer_of(kafka_config={"statistics.interval.ms": 100, "stats_cb": statistics.append}) as consumer:
        wait_until(lambda: bool(statistics), "Kafka's client reports", between=lambda: consumer.poll(0.1))
    with pytest.raises(InvalidUsage, match="topics"):
        consumer_of(topics=[])
    with pytest.raises(InvalidUsage, match="`group_id` names the group"):
        consumer_of(kafka_config={"group.id": "billing"})
    with closed_port() as port, pytest.raises(NotReachable):
        Consumer("billing", [topic], f"127.0.0.1:{port}", connect_timeout=1.0)


def test_a_class_of_the_application_may_extend_it(coordinator, group_id, topic):
    class Own(Consumer):
        def poll(self, timeout: float = 1.0) -> Message | None:
            return super().poll(min(timeout, 0.01))

    plane = coordinator.connection
    with Own(group_id, [topic], plane.bootstrap, prefix=plane.topics.prefix) as consumer:
        assert consumer.poll(60.0) is None


def test_their_producer_and_ours_are_the_same_to_a_consumer(consumer_of, coordinator, topic):
    plane = coordinator.connection
    theirs = confluent_kafka.Producer({"bootstrap.servers": plane.bootstrap})
    theirs.produce(topic, b"theirs", key=b"k", partition=0, headers=[("h", b"1")])
    theirs.flush(PATIENCE_S)
    with Producer(plane.bootstrap, prefix=plane.topics.prefix) as producer:
        producer.send(topic, b"ours", key=b"k", partition=1)
        producer.flush()
    with consumer_of() as consumer:
        messages = received(consumer, 22)

    assert {message.value(): message.key() for message in messages if message.offset() == 10} == {
        b"theirs": b"k",
        b"ours": b"k",
    }


def test_each_of_their_calls_has_a_row_that_is_shown():
    """A new method of theirs, or a row that no test shows, is found here."""
    theirs = [name for name in dir(confluent_kafka.Consumer) if name[0] != "_"]

    check_table(rows_of("from-confluent-kafka.md", "Call by call"), [*theirs, *EXTRA], sys.modules[__name__])
