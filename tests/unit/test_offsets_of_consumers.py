"""Offsets as in Kafka's clients: commits of single messages and queues, places to seek, and offsets of any queue."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Admin, Consumer, EpochMs, InvalidUsage, NotReachable
from wakeroll.errors import AccessDenied
from wakeroll.testing import MemoryBroker
from wakeroll_model.decisions import Offset
from wakeroll_model.queue import Queue

QUEUES = [Queue("orders", "", number) for number in range(2)]
MESSAGES = 10


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=len(QUEUES))
        for number in range(MESSAGES):
            for queue in QUEUES:
                broker.send("orders", str(number), queue=queue.queue_id)
        yield broker


def consumer_of(broker: MemoryBroker, **settings: Any) -> Consumer:
    settings = {"consume_from": "first", "commit_interval": None} | settings
    return Consumer("billing", ["orders"], broker.bootstrap, **settings)


def read(consumer: Consumer, count: int = len(QUEUES) * MESSAGES) -> list[Message]:
    """So many messages, in hand together: each earlier batch is put back."""

    def batch() -> list[Message]:
        found = consumer.consume(count, 0.1)
        if len(found) < count:
            consumer.put_back()
        return found

    return wait_until(lambda: found if len(found := batch()) == count else [], f"{count} messages")


def message_of(messages: list[Message], queue: int, offset: int) -> Message:
    return next(one for one in messages if (one.partition(), one.offset()) == (queue, offset))


@pytest.mark.parametrize("marks_done", [False, True])
def test_a_message_is_committed_with_those_before_it_in_its_queue(broker, marks_done):
    with consumer_of(broker, marks_done=marks_done) as consumer:
        messages = read(consumer)
        assert consumer.commit(message=message_of(messages, 0, 3))
        assert broker.committed("billing") == {QUEUES[0]: 4, QUEUES[1]: 0}
        assert consumer.commit(message=message_of(messages, 0, 1))  # it does not go back
        assert broker.committed("billing") == {QUEUES[0]: 4, QUEUES[1]: 0}
        consumer.put_back()
        again = read(consumer, len(QUEUES) * MESSAGES - 4)
        assert min(one.offset() for one in again if one.partition() == 0) == 4


@pytest.mark.parametrize("marks_done", [False, True])
def test_offsets_of_some_queues_are_committed_and_no_others(broker, marks_done):
    decisions: list[Any] = []
    with consumer_of(broker, marks_done=marks_done) as consumer:
        read(consumer)
        broker._coordinator.on_decision = decisions.append
        assert consumer.commit(offsets={QUEUES[1]: 7, ("orders", 0): (2, "batch 12")})
        assert broker.committed("billing") == {QUEUES[0]: 2, QUEUES[1]: 7}
        found = [one for one in decisions if isinstance(one, Offset) and one.metadata]
        assert [(one.queue, one.offset, one.metadata) for one in found] == [(QUEUES[0], 2, "batch 12")]


def test_nothing_is_committed_beyond_what_was_delivered(broker):
    """Such a commit would lose the messages in between, and is a mistake."""
    with consumer_of(broker) as consumer:
        read(consumer)
        for offsets, sentence in (
            ({QUEUES[0]: 11}, r"^offset 11 of orders-0 is beyond what was delivered: the next message has offset 10$"),
            ({QUEUES[0]: -1}, r"^the offset of orders-0 is -1; it must be a whole number"),
            ({QUEUES[0]: "3"}, r"^the offset of orders-0 is '3'; it must be a whole number"),
            ({QUEUES[0]: (3, b"x")}, r"^the text of orders-0 is b'x'; it must be text"),
            ({"orders-0": 3}, r"^queue is 'orders-0'; it must be a Queue, or a topic and a number"),
        ):
            with pytest.raises(InvalidUsage, match=sentence):
                consumer.commit(offsets=offsets)  # type: ignore[arg-type]
        assert not consumer.commit(offsets={("others", 0): 0})  # it is not of this consumer
        assert broker.committed("billing") == {QUEUES[0]: 0, QUEUES[1]: 0}
        with pytest.raises(InvalidUsage, match=r"^message and offsets were both given; pass one of them$"):
            consumer.commit(message=Message(), offsets={})
        with pytest.raises(InvalidUsage, match=r"^on_commit needs asynchronous=True"):
            consumer.commit(on_commit=print)


def test_only_read_ahead_is_not_delivered(broker):
    with consumer_of(broker) as consumer:
        first = wait_until(lambda: consumer.poll(0.1), "a message")
        with pytest.raises(InvalidUsage, match=r"beyond what was delivered: the next message has offset 1$"):
            consumer.commit(offsets={("orders", first.partition()): 2})


def test_an_asynchronous_commit_reports_its_end_in_a_later_call(broker):
    ended: list[tuple[bool, dict[Queue, int]]] = []
    with consumer_of(broker) as consumer:
        messages = read(consumer)
        assert consumer.commit(
            message=message_of(messages, 1, 4), asynchronous=True, on_commit=lambda *end: ended.append(end)
        )
        assert consumer.commit(offsets={QUEUES[0]: 2}, asynchronous=True)  # without a callback
        consumer.put_back()
        wait_until(lambda: ended, "the commit has ended", between=lambda: consumer.poll(0.05))
        assert ended == [(True, {QUEUES[1]: 5})]
        assert broker.committed("billing") == {QUEUES[0]: 2, QUEUES[1]: 5}
        consumer.put_back()
        consumer.commit(asynchronous=True, on_commit=lambda *end: ended.append(end))
    assert ended[1][1] == {QUEUES[0]: 2, QUEUES[1]: 5}
    assert len(ended) == 2


def test_a_callback_of_a_commit_during_close_may_call_what_a_closing_consumer_allows(broker):
    """As callbacks about revoked queues may: the consumer is closed for others when `close` has returned."""
    ended: list[bool] = []

    def note(is_committed: bool, _offsets: dict[Queue, int]) -> None:
        consumer.stop()
        consumer.close()
        ended.append(is_committed)

    with consumer_of(broker) as consumer:
        consumer.commit(asynchronous=True, on_commit=note)
        consumer.commit(asynchronous=True, on_commit=note)
    assert len(ended) == 2
    with pytest.raises(InvalidUsage, match="this Consumer is closed"):
        consumer.stop()


def test_a_commit_during_run_has_neither_a_message_nor_offsets(broker):
    problems: list[str] = []
    ended: list[bool] = []

    def handle(messages: list[Message]) -> None:
        try:
            consumer.commit(message=messages[0])
        except InvalidUsage as problem:
            problems.append(str(problem))
        consumer.commit(asynchronous=True, on_commit=note)

    def note(is_committed: bool, _offsets: dict[Queue, int]) -> None:
        ended.append(is_committed)
        consumer.stop()

    with consumer_of(broker) as consumer:
        consumer.run(handle, workers=1)
    assert set(problems) == {"commit() has neither message nor offsets during run(): results of calls count"}
    assert ended[0]


# --- places ---


def test_a_consumer_seeks_to_the_first_message_the_end_or_a_time(broker):
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        queue = Queue("orders", "", 0)
        with consumer_of(broker) as consumer:
            for number in range(3):
                broker.send("orders", str(number))
                wait_until(lambda: consumer.poll(0.1), "a message")
                broker.advance(10, wait=False)
            at_ms = [1_767_225_600_000 + 10_000 * number for number in range(3)]
            for place, offset in (
                ("first", 0),
                ("last", 3),
                (EpochMs(at_ms[1]), 1),
                (datetime.fromtimestamp(at_ms[2] / 1_000 - 1, UTC), 2),
                (EpochMs(at_ms[2] + 1), 3),
                (2, 2),
            ):
                consumer.seek(queue, place)
                assert consumer.position(queue) == offset
            times = {("orders", 0): at_ms[1] - 5_000}
            assert consumer.offsets_for_times(times) == {queue: 1}
            assert (consumer.first_offset(queue), consumer.end_offset(queue)) == (0, 3)
            broker.expire(queue, 2)
            assert consumer.first_offset(("orders", 0)) == 2
            for wrong in ("middle", -1, 1.5, True, datetime(2026, 1, 1)):
                with pytest.raises(InvalidUsage):
                    consumer.seek(queue, wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidUsage, match=r"^the time of orders-0 is 'noon'; it must be epoch ms"):
                consumer.offsets_for_times({queue: "noon"})  # type: ignore[dict-item]
            with pytest.raises(NotReachable):
                consumer.end_offset(("others", 0), timeout=0.2)


def test_the_committed_offset_of_any_queue_of_the_group_can_be_asked_for(broker):
    with consumer_of(broker, client_id="a") as one, consumer_of(broker, client_id="b") as other:
        wait_until(
            lambda: len(one.assignment()) == len(other.assignment()) == 1,
            "a queue each",
            between=lambda: (one.poll(0.05), one.put_back(), other.poll(0.05), other.put_back()),
        )
        [of_one], [of_other] = one.assignment(), other.assignment()
        wait_until(lambda: other.poll(0.1), "a message")
        assert other.commit()
        assert (other.committed(of_other), other.committed(of_one)) == (1, 0)
        assert one.committed(of_other) == 1
        assert one.committed(("others", 0)) is None


def test_a_consumer_that_may_not_read_decisions_says_so(broker, monkeypatch):
    """Most clients may not: the committed offsets of their own queues need no such right."""

    def denied(*_: Any) -> None:
        raise AccessDenied("the brokers deny it")

    with consumer_of(broker) as consumer, Admin(broker.bootstrap):
        read(consumer)
        monkeypatch.setattr("wakeroll.decision_log.DecisionLog.of_group", denied)
        wait_until(lambda: consumer.committed(QUEUES[0]) == 0, "the start is committed")
        with pytest.raises(AccessDenied):
            consumer.committed(("others", 0))
