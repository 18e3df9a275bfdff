"""Attempts belong to a message: whatever happens to the others of its call, only its own failures count."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Message

from tests.support.systems.memory_plane import MemoryPlane, PushClient
from tests.support.waiting import wait_until
from wakeroll import DeadLetter, Retry, origin_of
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.limits import PushLimits
from wakeroll.push.queue_work import Batch, Part, QueueWork
from wakeroll.testing import MemoryBroker
from wakeroll_model.client_actions import Give
from wakeroll_model.decisions import Start
from wakeroll_model.queue import Queue

GROUP, ORDERS = "billing", "orders"
SHARED: dict[str, Any] = {}
IN_ORDER: dict[str, Any] = {"orderly": True}
BROADCASTING: dict[str, Any] = {"mode": "broadcasting"}


def name_of(message: Message) -> str:
    return (message.value() or b"").decode()


def broker_with(count: int, key: str | None = None) -> MemoryBroker:
    """A broker with one queue of messages m0, m1, ..."""
    broker = MemoryBroker()
    broker.create_topic(ORDERS, queues=1)
    for at in range(count):
        broker.send(ORDERS, f"m{at}", key=key)
    return broker


def dead_in(broker: MemoryBroker) -> list[tuple[str, int]]:
    """The dead letters, each with the number of its last attempt."""
    return [(name_of(letter.message), letter.origin.attempt) for letter in broker.dead_letters(GROUP)]


class Calls:
    """A handler that notes each call."""

    def __init__(self, judge: Callable[[str, int, list[Message]], object]) -> None:
        """`judge` receives a message's name, how often it was delivered, and the messages from it on; it may raise."""
        self.made: list[list[str]] = []
        self._delivered: Counter[str] = Counter()
        self._judge = judge

    def __call__(self, messages: list[Message]) -> object:
        self.made.append([name_of(message) for message in messages])
        self._delivered.update(self.made[-1])
        for at, message in enumerate(messages):
            outcome = self._judge(name_of(message), self._delivered[name_of(message)], messages[at:])
            if outcome is not None:
                return outcome
        return None


def poison(name: str, _number: int, _messages: list[Message]) -> None:
    if name == "m1":
        raise LookupError("no such customer")


TOGETHER = ["m0", "m1", "m2", "m3"]


@pytest.mark.parametrize(
    ("kind", "key", "alone"),
    [
        (SHARED, None, ["m0", "m1", "m2", "m3", "m1", "m1"]),
        (SHARED, "customer-7", ["m0", "m1", "m2", "m3", "m1", "m1"]),
        (IN_ORDER, None, ["m0", "m1", "m1", "m1", "m2", "m3"]),
        (BROADCASTING, None, ["m0", "m1", "m2", "m3", "m1", "m1"]),
        (BROADCASTING, "customer-7", ["m0", "m1", "m1", "m1", "m2", "m3"]),
    ],
)
def test_after_an_exception_only_the_message_that_fails_alone_is_retried_and_dies(kind, key, alone):
    """An exception does not tell which message of the call it concerns, so each has a call of its own."""
    calls = Calls(poison)
    with broker_with(4, key) as broker:
        broker.join(GROUP, [ORDERS], calls, max_retries=2, **kind)
        broker.run_until_done()

        assert calls.made == [TOGETHER, *([name] for name in alone)]
        assert dead_in(broker) == [("m1", 3)]


@pytest.mark.parametrize("kind", [SHARED, IN_ORDER, BROADCASTING])
def test_a_call_of_several_messages_that_fails_once_costs_no_attempt_and_no_time(kind):
    """With `max_retries=0`, a single attempt would be a dead letter."""
    made: list[list[str]] = []
    failures = [ConnectionError("the database restarts")]

    def handle(messages: list[Message]) -> None:
        if failures:
            raise failures.pop()
        made.append([name_of(message) for message in messages])

    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], handle, max_retries=0, workers=1, **kind)
        broker.run_until_done()

        assert made == [[name] for name in TOGETHER]
        assert {one.at_s for one in broker.deliveries(GROUP)} == {0}
        assert dead_in(broker) == []


def test_an_asynchronous_handler_has_the_same_attempts():
    calls = Calls(poison)

    async def handle(messages: list[Message]) -> object:
        return calls(messages)

    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], handle, max_retries=2, workers=1)
        broker.run_until_done()

        assert calls.made == [TOGETHER, ["m0"], ["m1"], ["m2"], ["m3"], ["m1"], ["m1"]]
        assert dead_in(broker) == [("m1", 3)]


def test_messages_that_wait_behind_a_failed_one_keep_all_their_attempts():
    """In order, m1 fails once, after m0 has used up as many attempts as there are."""
    calls = Calls(
        lambda name, number, messages: (
            Retry(messages=messages[:1]) if (name, number) in [("m0", 1), ("m0", 2), ("m0", 3), ("m1", 2)] else None
        )
    )
    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], calls, orderly=True, max_retries=3)
        broker.run_until_done()

        assert calls.made == [TOGETHER, ["m0"], ["m0"], ["m0"], ["m1", "m2", "m3"], ["m1"], ["m2", "m3"]]
        assert dead_in(broker) == []


@pytest.mark.parametrize("max_retries", [0, 2])
def test_in_order_a_result_names_one_failure_and_what_waits_for_it(max_retries):
    """A handler that stops at the first failure may name the rest of its call too: it has not tried them."""
    calls = Calls(lambda name, _, messages: Retry(1, messages, "no such account") if name == "m1" else None)
    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], calls, orderly=True, max_retries=max_retries)
        broker.run_until_done()

        assert calls.made == [TOGETHER, *[["m1"]] * max_retries, ["m2", "m3"]]
        assert dead_in(broker) == [("m1", max_retries + 1)]
        assert [name_of(message) for message in broker.processed(GROUP)][-2:] == ["m2", "m3"]


def test_in_order_a_message_that_was_processed_behind_a_dead_one_is_not_repeated():
    """Only from the next failed one on, messages come again."""

    def handle(messages: list[Message]) -> object:
        calls.append([name_of(message) for message in messages])
        return [Retry(messages=[one]) for one in messages if name_of(one) in ("m0", "m2")]

    calls: list[list[str]] = []
    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], handle, orderly=True, max_retries=0)
        broker.run_until_done()

        assert calls == [TOGETHER, ["m2", "m3"]]
        assert dead_in(broker) == [("m0", 1), ("m2", 1)]


def test_named_messages_have_attempts_of_their_own_in_a_group_without_order():
    """m1 is named in every call, m2 only in the first one."""

    def handle(messages: list[Message]) -> object:
        names = ("m1", "m2") if len(messages) == 4 else ("m1",)
        hopeless = [one for one in messages if name_of(one) == "m3"]
        return [Retry(1, [one for one in messages if name_of(one) in names]), DeadLetter(hopeless, "not an order")]

    with broker_with(4) as broker:
        broker.join(GROUP, [ORDERS], handle, max_retries=2, workers=1)
        broker.run_until_done()

        assert dead_in(broker) == [("m3", 1), ("m1", 3)]
        assert [name_of(message) for message in broker.processed(GROUP)] == ["m0", "m2"]


@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_a_call_that_takes_too_long_costs_an_attempt_only_of_the_message_that_hangs_alone(kind):
    plane = MemoryPlane(1)
    plane.produce(0, 4)
    let_go = threading.Event()
    processed: set[int] = set()

    def handle(messages: list[Message]) -> None:
        for message in messages:
            if origin_of(message).offset == 1:
                let_go.wait(60)
        processed.update(origin_of(message).offset for message in messages)

    async def handle_async(messages: list[Message]) -> None:
        for message in messages:
            if origin_of(message).offset == 1:
                await asyncio.Event().wait()
        processed.update(origin_of(message).offset for message in messages)

    rules = RetryRules(in_place=False, max_retries=0, handle_timeout=0.2)
    handler = handle if kind == "threads" else handle_async
    client = PushClient(plane, "c0", handler, PushLimits(workers=2, batch_size=4), rules=rules)
    wait_until(lambda: plane.offsets() == {0: 4}, "every message has ended", state=plane.offsets)
    assert processed == {0, 2, 3}
    let_go.set()
    client.stop()

    assert [(letter.offset, letter.attempt) for letter in plane.dead] == [(1, 1)]


def failed_batch(*, orderly: bool) -> tuple[QueueWork, Batch]:
    """A batch of four messages whose call has failed, and two messages that wait behind it."""
    queue = Queue(ORDERS, "", 0)
    give = Give(queue, Start("first", 0, None), 1, "i1")
    work = QueueWork(give, 0, batch_size=4, lanes=1, orderly=orderly)
    batch, *_ = work.add([Message(topic=ORDERS, offset=at, key=b"k", value=b"v") for at in range(6)], 6)
    assert work.begin(batch)
    assert work.fail(batch)
    return work, batch


def alone(batch: Batch) -> list[Part]:
    return [Part([message], 1) for message in batch.messages]


def test_one_after_the_other_they_are_handled_before_those_that_wait_for_the_lane():
    work, batch = failed_batch(orderly=True)

    ready = work.divide(batch, alone(batch))
    handled = []
    while ready:
        [one] = ready
        assert work.begin(one)
        handled.append([message.offset() for message in one.messages])
        assert work.position == one.first
        following = work.finish(one)
        ready = [] if following is None else [following]

    assert handled == [[0], [1], [2], [3], [4, 5]]
    assert (work.position, work.messages, work.bytes, work.running) == (6, 0, 0, 0)


def test_a_queue_that_is_stopped_leaves_messages_that_no_call_of_their_own_has_reached_to_others_in_order():
    """Nothing after them is processed, so the next owner begins with them at once."""
    work, batch = failed_batch(orderly=True)
    [first] = work.divide(batch, alone(batch))
    assert work.begin(first)

    assert work.stop() == 5
    assert work.finish(first) is None

    assert work.is_settled
    assert work.position == 1


def test_a_queue_that_is_stopped_before_its_call_fails_leaves_the_whole_call_to_others_in_order():
    work, batch = failed_batch(orderly=True)
    work.stop()

    assert work.divide(batch, alone(batch)) == []
    assert work.is_settled
    assert (work.position, work.running) == (0, 0)


def test_without_order_a_stopped_queue_still_handles_the_messages_of_a_failed_call():
    """Later messages may be processed already; they would be delivered again with these."""
    work, batch = failed_batch(orderly=False)
    work.stop()

    [first] = work.divide(batch, alone(batch))
    assert work.begin(first)
    assert not work.is_settled

    work.halt()
    assert work.finish(first) is None
    assert work.is_settled
    assert work.position == 1


def test_nothing_begins_in_a_queue_that_was_halted_when_its_call_fails_at_last():
    work, batch = failed_batch(orderly=False)
    work.halt()

    assert work.divide(batch, alone(batch)) == []
    assert (work.position, work.running) == (0, 0)


def test_a_message_that_cannot_be_stored_holds_the_position_and_nothing_else():
    work, batch = failed_batch(orderly=False)
    refused = batch.messages[2]

    following = work.hold(batch, [refused], lets_pass=True)
    assert following is not None
    assert work.begin(following)
    assert work.finish(following) is None

    assert (work.position, work.messages, work.bytes, work.running) == (2, 1, 1, 0)
    assert work.hold(batch, [refused], lets_pass=True) is None
    assert work.finish(batch) is None
    assert (work.position, work.messages, work.bytes, work.running) == (6, 0, 0, 0)


def test_in_order_the_messages_behind_one_that_cannot_be_stored_wait():
    """The next owner would process it after them."""
    work, batch = failed_batch(orderly=True)

    assert work.hold(batch, batch.messages[:1], lets_pass=False) is None
    assert work.position == 0
    [behind] = work.divide(batch, [Part([message], 1) for message in batch.messages])
    assert behind.messages[0].offset() == 0


@pytest.mark.parametrize("is_held_before", [True, False])
@pytest.mark.parametrize("orderly", [True, False])
def test_a_message_that_cannot_be_stored_does_not_delay_a_hand_over(orderly, is_held_before):
    """The next owner receives it again."""
    work, batch = failed_batch(orderly=orderly)
    if is_held_before:
        work.hold(batch, batch.messages[:1], lets_pass=False)
        work.stop()
    else:
        work.stop()
        work.hold(batch, batch.messages[:1], lets_pass=False)

    assert work.is_settled
    assert (work.position, work.running, batch.state) == (0, 0, "abandoned")
