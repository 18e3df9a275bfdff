"""Batches, and messages that are read ahead: `consume`, `poll` and loops take from one place, and lose nothing."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.interrupts import Interrupt, at_every_line
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage
from wakeroll.last_will.member_will import MemberWill
from wakeroll.last_will.will_file import Sending, WillFile, read_will
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

QUEUES = [Queue("orders", "", number) for number in range(3)]
MESSAGES = 20
"""Of each queue."""
ALL = {(queue.queue_id, offset) for queue in QUEUES for offset in range(MESSAGES)}
STEP = int(os.environ.get("INTERRUPTS_STEP", "23"))


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=len(QUEUES))
        for offset in range(MESSAGES):
            for queue in QUEUES:
                broker.send("orders", str(offset), queue=queue.queue_id, tags="even" if offset % 2 == 0 else "odd")
        yield broker


def consumer_of(broker: MemoryBroker, topics: Any = ("orders",), **settings: Any) -> Consumer:
    return Consumer("billing", topics, broker.bootstrap, **{"consume_from": "first", "commit_interval": 0.1} | settings)


def place_of(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0


def read(count: int, take: Callable[[], list[Message]]) -> list[Message]:
    found: list[Message] = []
    wait_until(lambda: len(found) >= count, f"{count} messages", between=lambda: found.extend(take()))
    return found


def is_in_order(messages: list[Message]) -> bool:
    return all(
        [offset for number, offset in map(place_of, messages) if number == queue.queue_id] == list(range(MESSAGES))
        for queue in QUEUES
    )


def test_a_batch_has_messages_of_several_queues_and_the_next_one_confirms_it(broker):
    with consumer_of(broker, commit_interval=None) as consumer:
        assert wait_until(lambda: consumer.consume(7), "messages")
        assert consumer.commit()
        assert sum(broker.committed("billing").values()) <= 7
        consumer.put_back()  # those that were committed do not come again
        rest = read(len(ALL) - 7, lambda: consumer.consume(500, 0.1))
        assert len({message.partition() for message in rest}) == len(QUEUES)
        consumer.consume(1, 0)
        assert consumer.commit()
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_polls_batches_and_loops_take_from_one_place(broker):
    found: list[Message] = []
    with consumer_of(broker) as consumer:

        def take() -> None:
            if (message := consumer.poll(0.1)) is not None:
                found.append(message)
            found.extend(consumer.consume(4, 0.1))
            if len(found) < len(ALL):
                for message in consumer:
                    found.append(message)
                    break

        wait_until(lambda: len(found) >= len(ALL), "all messages", between=take)
        assert is_in_order(found)
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_a_loop_ends_when_the_consumer_is_closed(broker):
    """By another thread, as a signal handler of a service does."""
    with consumer_of(broker) as consumer:
        found = []
        for message in consumer:
            found.append(message)
            if len(found) == len(ALL):
                threading.Thread(target=consumer.close).start()
    assert is_in_order(found)


def test_what_was_only_read_ahead_is_not_committed(broker):
    """A read-ahead message counts as delivered only when `poll` returns it."""
    with consumer_of(broker) as consumer:
        for _ in range(5):
            wait_until(lambda: consumer.poll(0.1), "a message")
    assert sum(broker.committed("billing").values()) == 5


def test_messages_that_do_not_match_are_passed_over_up_to_what_is_delivered(broker):
    with consumer_of(broker, {"orders": "odd"}) as consumer:
        odd = read(len(ALL) // 2, lambda: consumer.consume(500, 0.1))
        assert {offset % 2 for _, offset in map(place_of, odd)} == {1}
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)
    with Consumer("audit", {"orders": "even"}, broker.bootstrap, consume_from="first") as consumer:
        first = wait_until(lambda: consumer.poll(0.1), "a message")
        assert place_of(first)[1] == 0
    assert max(broker.committed("audit").values()) == 1


def test_polls_pass_over_what_does_not_match_behind_the_last_message_of_each_queue(broker):
    """`poll` goes on in the next queue without a look at the membership; the tail of the one before counts."""
    with consumer_of(broker, {"orders": "even"}) as consumer:
        even = read(len(ALL) // 2, lambda: [message for message in [consumer.poll(0.1)] if message is not None])
        assert [consumer.position(queue) for queue in QUEUES] == [MESSAGES] * len(QUEUES)
        assert sorted(map(place_of, even)) == sorted(place for place in ALL if place[1] % 2 == 0)
        consumer.put_back()
        again = wait_until(lambda: consumer.poll(0.1), "the last one again")
        assert place_of(again) == place_of(even[-1])
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_positions_lag_pause_and_seek_follow_what_is_delivered(broker):
    with consumer_of(broker) as consumer:
        first = wait_until(lambda: consumer.poll(0.1), "a message")
        queue = Queue("orders", "", first.partition() or 0)
        wait_until(lambda: len(consumer.assignment()) == len(QUEUES), "all queues")
        assert consumer.position(queue) == 1
        assert sum(consumer.lag().values()) == len(ALL) - 1
        consumer.pause([queue])
        others = read(len(ALL) - MESSAGES, lambda: consumer.consume(500, 0.1))
        assert queue.queue_id not in {message.partition() for message in others}
        assert consumer.lag() == {one: MESSAGES - 1 if one == queue else 0 for one in QUEUES}
        consumer.resume([queue])
        consumer.seek(queue, 10)
        assert consumer.position(queue) == 10
        assert place_of(wait_until(lambda: consumer.poll(0.1), "a message")) == (queue.queue_id, 10)


def test_a_batch_that_was_put_back_comes_again(broker):
    with consumer_of(broker) as consumer:
        before = read(10, lambda: consumer.consume(5, 0.1))
        again = consumer.consume(5, 1)
        consumer.put_back()
        rest = read(len(ALL) - len(before), lambda: consumer.consume(7, 0.1))
        assert {place_of(message) for message in again} <= {place_of(message) for message in rest}
        assert is_in_order([*before, *rest])


def test_a_queue_that_moves_takes_what_was_read_ahead_with_it(broker):
    """It is delivered by the next owner, and by nobody else."""
    seen: list[tuple[int, int]] = []
    with consumer_of(broker, client_id="a") as one:
        seen.append(place_of(wait_until(lambda: one.poll(0.1), "a message")))
        with consumer_of(broker, client_id="b") as other:

            def poll() -> None:
                for consumer in (one, other):
                    seen.extend(map(place_of, filter(None, [consumer.poll(0.01)])))

            wait_until(lambda: len(seen) >= len(ALL), "all messages", between=poll)
            assert other.assignment()
            poll()
    assert sorted(seen) == sorted(ALL)
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_calls_may_come_from_several_threads_one_after_the_other(broker):
    """As with `asyncio.to_thread`, and with pools."""
    found: list[Message] = []
    with consumer_of(broker) as consumer:

        def take() -> None:
            found.extend(consumer.consume(3, 0.1))
            found.extend(filter(None, [consumer.poll(0)]))

        while len(found) < len(ALL):
            thread = threading.Thread(target=take)
            thread.start()
            thread.join()
        assert consumer.commit()
    assert is_in_order(found)
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_calls_at_once_are_refused_and_name_both_threads(broker):
    broker.create_topic("empty")
    with Consumer("waiting", ["empty"], broker.bootstrap) as consumer:
        thread = threading.Thread(target=list, args=(consumer,), name="first")  # until it is closed
        thread.start()
        wait_until(lambda: consumer._polling.locked(), "the first thread polls")
        for call in (consumer.poll, consumer.consume, consumer.commit, consumer.put_back, consumer.lag):
            with pytest.raises(
                InvalidUsage, match=rf"^thread 'MainThread' called {call.__name__}\(\) while thread 'fi"
            ):
                call()
        consumer.close()
        thread.join()


@pytest.mark.parametrize("number", [0, -1, 100_001, True, "5"])
def test_the_size_of_a_batch_has_bounds(broker, number):
    with consumer_of(broker) as consumer, pytest.raises(InvalidUsage, match=r"^num_messages is .*; it must be a whole"):
        consumer.consume(number)


def test_a_fork_gets_nothing_that_was_read_ahead(broker):
    with consumer_of(broker) as consumer:
        wait_until(lambda: consumer.poll(0.1), "a message")
        consumer.poll(1)
        child = os.fork()
        if child == 0:
            try:
                consumer.poll(0)
            except InvalidUsage:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert consumer.poll(1) is not None


def test_batches_that_are_interrupted_lose_nothing(broker):
    """An exception comes at any line, as that of a signal handler does; with and without marks."""
    for number, interrupted in enumerate(at_every_line(STEP)):
        marks = number % 2 == 0
        consumer = Consumer(
            f"interrupted-{number}", ["orders"], broker.bootstrap, consume_from="first", marks_done=marks
        )
        seen: set[tuple[int, int]] = set()
        while seen != ALL:
            try:
                batch = interrupted.call(consumer.consume, 7, 0.5)
                seen.update(map(place_of, batch))
                if marks:
                    interrupted.call(consumer.done, *reversed(batch))
                if (message := interrupted.call(consumer.poll, 0)) is not None:
                    seen.add(place_of(message))
                    consumer.done(message) if marks else None
            except Interrupt:
                committed = broker.committed(f"interrupted-{number}")
                missing = {(queue.queue_id, at) for queue, offset in committed.items() for at in range(offset)} - seen
                assert not missing, f"{interrupted.where}: committed and not processed: {sorted(missing)}"
        consumer.poll(0)
        consumer.close()


# --- messages that are done in another order ---


def test_the_committed_offset_is_that_of_the_first_message_that_is_not_done(broker):
    with consumer_of(broker, marks_done=True, commit_interval=None) as consumer:
        messages = read(len(ALL), lambda: consumer.consume(9, 0.1))
        of_queue = [message for message in messages if message.partition() == 1]
        assert consumer.done(*of_queue[1:5])
        assert consumer.commit()
        assert broker.committed("billing")[QUEUES[1]] == 0
        assert consumer.done(of_queue[0])
        assert consumer.commit()
        assert broker.committed("billing")[QUEUES[1]] == 5
        assert not consumer.done(of_queue[0])  # a second time
        assert consumer.done(*reversed([message for message in messages if message not in of_queue[:5]]))
        assert consumer.commit()
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_threads_may_finish_messages_while_another_one_polls(broker):
    with consumer_of(broker, marks_done=True) as consumer:
        messages = read(len(ALL), lambda: consumer.consume(500, 0.1))
        threads = [threading.Thread(target=consumer.done, args=messages[at::4]) for at in range(4)]
        for thread in threads:
            thread.start()
        consumer.poll(0.1)
        for thread in threads:
            thread.join()
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_a_revoked_queue_waits_for_its_messages(broker):
    """Otherwise the next owner would repeat what is about to be finished."""
    with consumer_of(broker, marks_done=True, client_id="a") as one:
        messages = read(len(ALL), lambda: one.consume(500, 0.1))
        with consumer_of(broker, marks_done=True, client_id="b") as other:
            wait_until(lambda: one.poll(0.05) or len(one.assignment()) < len(QUEUES), "a queue is revoked")
            for _ in range(5):
                assert one.poll(0.05) is None
                assert other.poll(0.05) is None
            assert other.assignment() == []
            assert one.done(*messages)
            wait_until(lambda: other.assignment(), "it moves", between=lambda: (one.poll(0.05), other.poll(0.05)))
            assert other.poll(0.2) is None  # nothing of it comes again
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_messages_that_are_never_done_hold_a_revoked_queue_only_for_a_while(broker, monkeypatch, caplog):
    monkeypatch.setattr("wakeroll.push.limits.GIVE_UP_AT", 0.001)
    with consumer_of(broker, marks_done=True, client_id="a") as one:
        read(len(ALL), lambda: one.consume(500, 0.1))
        with consumer_of(broker, marks_done=True, client_id="b") as other:
            again = wait_until(lambda: other.poll(0.05), "the other has its messages", between=lambda: one.poll(0.05))
            assert place_of(again)[1] == 0
    assert any(line.getMessage().startswith("gave up orders-") for line in caplog.records)


def test_messages_after_a_seek_or_put_back_need_no_mark(broker):
    with consumer_of(broker, marks_done=True) as consumer:
        batch = wait_until(lambda: consumer.consume(3, 0.1), "messages")
        consumer.put_back()
        assert not consumer.done(*batch)
        again = read(len(ALL), lambda: consumer.consume(500, 0.1))
        assert is_in_order(again)
        consumer.seek(QUEUES[0], MESSAGES - 1)
        assert not consumer.done(next(message for message in again if message.partition() == 0))
        last = wait_until(lambda: consumer.poll(0.1), "the last message of the queue")
        assert consumer.done(last)
        assert consumer.done(*[message for message in again if message.partition() != 0])
    assert broker.committed("billing") == dict.fromkeys(QUEUES, MESSAGES)


def test_marks_and_calls_of_a_handler_exclude_each_other(broker):
    with consumer_of(broker, marks_done=True) as consumer:
        with pytest.raises(InvalidUsage, match=r"^run\(\) needs a Consumer without marks_done=True"):
            consumer.run(print)
        with pytest.raises(TypeError):
            consumer.done(messages=[])  # type: ignore[call-arg]
    with consumer_of(broker) as consumer:
        message = wait_until(lambda: consumer.poll(0.1), "a message")
        with pytest.raises(InvalidUsage, match=r"^done\(\) needs a Consumer with marks_done=True"):
            consumer.done(message)


# --- the last will ---


class _NoExecutor:
    """Nobody reads the will but the test."""

    def register(self, *_: object) -> None:
        pass

    forget = look = renew = register


@pytest.mark.skipif(sys.platform != "linux", reason="last wills need memory files")
@pytest.mark.parametrize("marks", [False, True])
def test_the_last_will_has_what_is_processed_after_each_call(broker, monkeypatch, marks):
    """If the process dies now, nothing that was processed is repeated, and nothing else is lost."""
    file = WillFile(Sending({}, "wakeroll.groups", None))
    monkeypatch.setattr(
        "wakeroll.last_will.member_will.will_for",
        lambda client, *_: MemberWill(client, file, _NoExecutor()),  # type: ignore[arg-type]
    )

    def progress() -> dict[int, int]:
        found = read_will(file.will_fd, file.progress_fd)
        assert found is not None
        return {queue.queue_id: offset for queue, offset in found.progress.items() if offset}

    expected: dict[int, int] = {}
    with consumer_of(broker, marks_done=marks) as consumer:
        for number in range(len(ALL)):
            batch = wait_until(
                lambda: consumer.consume(3, 0.1) if number % 3 == 0 else list(filter(None, [consumer.poll(0.1)])),  # noqa: B023
                "messages",
            )
            if not marks:
                assert progress() == expected
            for message in batch:
                if marks:
                    consumer.done(message)
                queue, offset = place_of(message)
                expected[queue] = offset + 1
                if marks:
                    assert progress() == expected
            if sum(expected.values()) == len(ALL):
                break
        consumer.poll(0)
        assert progress() == {queue.queue_id: MESSAGES for queue in QUEUES}
