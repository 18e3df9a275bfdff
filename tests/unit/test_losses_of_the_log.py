"""Consumers of a queue whose log loses its tail or its head, or has records that are never delivered."""

import threading
from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Consumer, Queue
from wakeroll.connection import Connection
from wakeroll.reader import Reader
from wakeroll.testing import MemoryBroker
from wakeroll.testing.member_thread import Member
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start

GROUP, ORDERS = "billing", "orders"
QUEUE = Queue(ORDERS, "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    """A broker with one queue."""
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        yield broker


@pytest.fixture
def old_broker() -> Iterator[MemoryBroker]:
    """A broker without leader epochs, with one queue."""
    with MemoryBroker(leader_epochs=False) as broker:
        broker.create_topic(ORDERS)
        yield broker


def text_of(message: Message) -> str:
    return (message.value() or b"").decode()


def send(broker: MemoryBroker, name: str, count: int) -> list[str]:
    """Send messages to the queue, and return their values."""
    values = [f"{name}{number}" for number in range(count)]
    for value in values:
        broker.send(ORDERS, value, queue=0)
    return values


def join(broker: MemoryBroker, seen: list[str], **arguments: object) -> Member:
    def handle(messages: list[Message]) -> None:
        seen.extend(map(text_of, messages))

    return broker.join(GROUP, [ORDERS], handle, **arguments)


def consume(broker: MemoryBroker) -> list[str]:
    """Let a member handle what there is, and leave."""
    seen: list[str] = []
    member = join(broker, seen)
    broker.run_until_done()
    member.stop()
    return seen


def polled(consumer: Consumer) -> list[str]:
    """Poll until nothing more comes for a while."""
    found: list[str] = []
    quiet = 0
    while quiet < 5:
        message = consumer.poll(0.1)
        quiet += message is None
        if message is not None:
            found.append(text_of(message))
    return found


# --- the tail is lost ---


@pytest.mark.parametrize("new", [1, 9], ids=["shorter", "longer"])
def test_a_member_at_work_continues_where_the_log_was_cut(broker, new):
    """Neither is a message repeated nor a new one lost, also if the log has grown past the position."""
    seen: list[str] = []
    send(broker, "old", 10)
    join(broker, seen)
    broker.run_until_done()
    seen.clear()
    broker.truncate(QUEUE, 6)
    values = send(broker, "new", new)
    broker.run_until_done()

    assert seen == values
    assert broker.committed(GROUP) == {QUEUE: 6 + new}


@pytest.mark.parametrize("new", [1, 9], ids=["shorter", "longer"])
def test_a_member_that_polls_continues_where_the_log_was_cut(broker, new):
    send(broker, "old", 10)
    with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first", commit_interval=0.02) as consumer:
        assert len(polled(consumer)) == 10
        broker.truncate(QUEUE, 6)
        values = send(broker, "new", new)

        assert polled(consumer) == values
        assert consumer.position(QUEUE) == 6 + new
        assert consumer.commit()
        assert consumer.committed(QUEUE) == 6 + new
    assert broker.committed(GROUP) == {QUEUE: 6 + new}


@pytest.mark.parametrize("new", [1, 9], ids=["shorter", "longer"])
def test_a_member_that_was_away_continues_where_the_log_was_cut(broker, new):
    """The leader epoch of the committed offset shows that the messages behind it are other ones."""
    send(broker, "old", 10)
    assert len(consume(broker)) == 10
    broker.truncate(QUEUE, 6)
    values = send(broker, "new", new)

    assert consume(broker) == values
    assert broker.committed(GROUP) == {QUEUE: 6 + new}
    assert consume(broker) == []


def test_a_log_that_has_grown_to_the_very_same_length_is_noticed(broker):
    """No message shows it. After two routes, the committed offset is often just the end of the new log."""
    send(broker, "old", 10)
    assert len(consume(broker)) == 10
    broker.truncate(QUEUE, 6)
    values = send(broker, "new", 4)

    assert consume(broker) == values


def test_an_election_without_a_loss_is_noticed_without_a_move(broker):
    send(broker, "old", 10)
    assert len(consume(broker)) == 10
    broker.elect(QUEUE)

    assert consume(broker) == []
    assert broker.committed(GROUP) == {QUEUE: 10}


def test_a_log_that_has_only_records_behind_the_position_that_are_never_delivered_is_compared(broker):
    """The end of the queue is then all that Kafka's client reports: it proves as little as a message."""
    send(broker, "old", 2)
    assert len(consume(broker)) == 2
    broker.truncate(QUEUE, 1)
    values = send(broker, "new", 1)
    broker.send_marker(QUEUE)
    broker.send_marker(QUEUE)

    assert consume(broker) == values
    assert broker.committed(GROUP) == {QUEUE: 4}


def test_messages_that_are_to_be_compared_with_the_log_are_not_passed_at_its_end(broker):
    """The comparison may have to wait: Kafka was asked about another queue a moment ago."""
    other = Queue("returns", "", 0)
    broker.create_topic(other.topic)
    broker.send(other.topic, "lost")
    broker.truncate(other, 0)
    values = send(broker, "old", 3)
    broker.elect(QUEUE)
    values += send(broker, "new", 2)
    reader = Reader(Connection(broker.bootstrap))
    found: list[str] = []

    def take() -> bool:
        moves, reader.moves = reader.moves, []
        assert [move for move in moves if move.give.queue == QUEUE] == []
        found.extend(text_of(message) for _, run in reader.take(10, 0.01) for message in run)
        return found == values[2:]

    reader.start([Give(other, Start(offset=1, leader_epoch=0), 1, "")])
    wait_until(lambda: not take() and reader.position(other) == 0, "the place in the other queue is found")
    reader.start([Give(QUEUE, Start(offset=2, leader_epoch=0), 1, "")])
    wait_until(take, "all messages behind the start are read", state=lambda: found)
    reader.close()


def test_an_election_without_a_loss_repeats_nothing(broker):
    send(broker, "old", 5)
    assert len(consume(broker)) == 5
    broker.elect(QUEUE)
    values = send(broker, "new", 5)

    assert consume(broker) == values


def test_a_log_may_be_cut_again_and_again(broker):
    expected: list[str] = []
    seen: list[str] = []
    expected += send(broker, "first", 10)
    join(broker, seen)
    broker.run_until_done()
    for name, end in (("second", 8), ("third", 5), ("fourth", 0)):
        broker.truncate(QUEUE, end)
        expected += send(broker, name, 4)
        broker.run_until_done()

    assert seen == expected
    assert broker.committed(GROUP) == {QUEUE: 4}


def test_a_commit_goes_back_with_the_log_so_that_a_crash_repeats_only_the_last_messages(broker):
    send(broker, "old", 10)
    seen: list[str] = []
    member = join(broker, seen)
    broker.run_until_done()
    broker.truncate(QUEUE, 6)
    send(broker, "new", 2)
    broker.run_until_done()
    member.crash()
    values = send(broker, "more", 1)

    assert broker.committed(GROUP) == {QUEUE: 8}
    assert consume(broker) == values


def test_calls_at_work_end_before_the_queue_goes_back(broker):
    """A call has messages that were lost meanwhile; what it processes is not repeated, and nothing new is skipped."""
    send(broker, "old", 10)
    seen: list[str] = []
    began, may_end = threading.Event(), threading.Event()

    def handle(messages: list[Message]) -> None:
        began.set()
        assert may_end.wait(30)
        seen.extend(map(text_of, messages))

    broker.join(GROUP, [ORDERS], handle, workers=1, batch_size=8)
    broker.wait_until(began.is_set)
    broker.truncate(QUEUE, 6)
    values = send(broker, "new", 9)
    may_end.set()
    broker.run_until_done()

    assert [value for value in seen if value.startswith("new")] == values
    assert len(seen) == len(set(seen))
    assert broker.committed(GROUP) == {QUEUE: 15}


def test_without_leader_epochs_the_smallest_end_counts_that_was_seen(old_broker):
    """Never the first message again: the member noticed the loss before new messages came."""
    seen: list[str] = []
    send(old_broker, "old", 10)
    join(old_broker, seen)
    old_broker.run_until_done()
    seen.clear()
    old_broker.truncate(QUEUE, 6)
    old_broker.run_until_done()
    values = send(old_broker, "new", 9)
    old_broker.run_until_done()

    assert seen == values
    assert old_broker.committed(GROUP) == {QUEUE: 15}


def test_a_fetch_reads_on_in_a_log_that_was_cut_and_has_grown(broker):
    """Its offset is the application's. It must not wait for Kafka's client, which reads no further by itself."""
    send(broker, "old", 10)
    with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first") as consumer:
        assert len(consumer.fetch(QUEUE, 0, 0, max_messages=9).messages) == 9
        broker.truncate(QUEUE, 6)
        values = send(broker, "new", 9)

        assert list(map(text_of, consumer.fetch(QUEUE, 9, 0).messages)) == values[3:]


# --- the head is gone ---


def test_the_committed_offset_passes_messages_that_expired(broker):
    """Otherwise the lag of an empty queue would stay until its next message."""
    send(broker, "old", 10)
    with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first", commit_interval=0.02) as consumer:
        assert polled(consumer)
        consumer.pause([QUEUE])
        consumer.poll(0)
        send(broker, "lost", 10)
        broker.expire(QUEUE, 20)
        consumer.resume([QUEUE])

        assert polled(consumer) == []
        assert consumer.position(QUEUE) == 20
        assert consumer.lag() == {QUEUE: 0}
        assert consumer.commit()
    assert broker.committed(GROUP) == {QUEUE: 20}


def test_a_member_that_was_away_continues_at_the_first_message_that_is_left(broker):
    send(broker, "old", 10)
    assert len(consume(broker)) == 10
    send(broker, "lost", 10)
    broker.expire(QUEUE, 20)

    assert consume(broker) == []
    assert broker.committed(GROUP) == {QUEUE: 20}
    assert consume(broker) == []


# --- what is never delivered ---


def test_committed_offsets_pass_what_is_never_delivered(broker):
    """Markers of transactions at the end of a queue are no lag."""
    seen: list[str] = []
    values = send(broker, "old", 3)
    join(broker, seen)
    broker.send_marker(QUEUE)
    broker.run_until_done()
    assert broker.committed(GROUP) == {QUEUE: 4}

    values += send(broker, "new", 1)
    broker.send_marker(QUEUE)
    broker.send_marker(QUEUE)
    broker.run_until_done()

    assert seen == values
    assert broker.committed(GROUP) == {QUEUE: 7}


def test_a_member_that_polls_commits_behind_markers_when_everything_before_is_processed(broker):
    values = send(broker, "old", 2)
    broker.send_marker(QUEUE)
    with Consumer(GROUP, [ORDERS], broker.bootstrap, consume_from="first", commit_interval=None) as consumer:
        first, second = (consumer.poll(5) for _ in values)
        assert first is not None
        assert second is not None
        assert consumer.position(QUEUE) == 2
        assert polled(consumer) == []
        assert consumer.position(QUEUE) == 3
        assert consumer.commit()
    assert broker.committed(GROUP) == {QUEUE: 3}


def test_a_message_at_work_holds_the_markers_behind_it_back(broker):
    may_end = threading.Event()

    def handle(_messages: list[Message]) -> None:
        assert may_end.wait(30)

    send(broker, "old", 1)
    broker.send_marker(QUEUE)
    member = broker.join(GROUP, [ORDERS], handle, commit_interval=0.02)
    broker.wait_until(lambda: member.calls)
    broker.wait_until(lambda: member.consumer.position(QUEUE) == 0)
    assert broker.committed(GROUP) == {QUEUE: 0}
    may_end.set()
    broker.run_until_done()

    assert broker.committed(GROUP) == {QUEUE: 2}


@pytest.mark.parametrize(
    "heirs", [("refunded", "paid"), ("paid", "refunded")], ids=["another filter", "the same filter"]
)
def test_progress_of_a_filter_beyond_the_committed_offset_ends_where_the_log_was_cut(broker, heirs):
    """It is committed for the filter, as long as another member wants a message before it; both may be lost."""
    tags = ["refunded", *["paid"] * 5]
    for number, tag in enumerate(tags):
        broker.send(ORDERS, f"old{number}", queue=0, tags=tag)
    seen: list[str] = []
    first = broker.join(
        GROUP,
        {ORDERS: "paid"},
        lambda messages: seen.extend(map(text_of, messages)),
        client_id="first",
        strategy="AVG",  # the queue stays with the first member
    )
    broker.settle()
    others = [
        broker.join(
            GROUP, {ORDERS: tag}, lambda messages: seen.extend(map(text_of, messages)), client_id=f"heir-{number}"
        )
        for number, tag in enumerate(heirs)
    ]
    broker.run_until_done()
    assert seen == [f"old{number}" for number in range(1, 6)]
    assert broker.committed(GROUP) == {QUEUE: 0}

    first.crash()
    broker.truncate(QUEUE, 2)
    for number in range(8):
        broker.send(ORDERS, f"new{number}", queue=0, tags="paid")
    for member in others:
        broker.run_until_done()
        member.stop()
    broker.join(GROUP, {ORDERS: "*"}, lambda messages: seen.extend(map(text_of, messages)))
    broker.run_until_done()

    assert set(seen) == {f"old{number}" for number in range(6)} | {f"new{number}" for number in range(8)}
    assert [text for text in seen if text.startswith("new")] == [f"new{number}" for number in range(8)]


@pytest.mark.parametrize("why", ["recovered", "set back", "compared"])
def test_a_position_that_is_assigned_again_is_compared_with_the_log_until_its_first_message(broker, why):
    """After an exception, or a handler's failure: the log is cut and grows past the position before the next fetch."""
    send(broker, "old", 10)
    reader = Reader(Connection(broker.bootstrap))
    reader.leader_epoch_at = lambda _give, _offset: 0
    give = Give(QUEUE, Start(offset=10 if why == "compared" else 0, leader_epoch=0), 1, "")
    reader.start([give])
    wait_until(lambda: reader.take(10, 0.05) == [] and reader.position(QUEUE) == 10, "the old messages are read")
    if why == "recovered":
        reader.reach((give, 10))
        reader.recover()
    elif why == "set back":
        reader.set_back([(give, 9)])
        wait_until(lambda: reader.take(10, 0.05), "the last message is read again")
    wait_until(lambda: reader.take(10, 0.5) == [] and not reader.is_mending, "the position is compared with the log")
    broker.truncate(QUEUE, 6)
    values = send(broker, "new", 9)
    found: list[str] = []

    def has_all() -> bool:
        reader.moves.clear()
        found.extend(text_of(message) for _, run in reader.take(10, 0.05) for message in run)
        return len(found) >= len(values)

    wait_until(has_all, "as many messages are read as came", state=lambda: found)
    assert found == values
    reader.close()
