"""Retries as an application wants them: its own delays, a function for dead letters, and errors that fit a header."""

import asyncio
import decimal
from itertools import pairwise

import pytest
from confluent_kafka import Message

from wakeroll import Consumer, DeadLetter, InvalidUsage, Origin, Retry
from wakeroll.push.failure_handling import RetryRules
from wakeroll.push.outcomes import MAX_ERROR_BYTES
from wakeroll.testing import MemoryBroker

GROUP, ORDERS = "billing", "orders"


@pytest.fixture
def broker():
    with MemoryBroker() as broker:
        broker.create_topic(ORDERS)
        broker.send(ORDERS, "17")
        yield broker


def fail(_messages: list[Message]) -> None:
    raise LookupError("no such order")


def waits_s(broker: MemoryBroker) -> list[int]:
    """Return how long the message waited before each of its retries."""
    return [round(later.at_s - earlier.at_s) for earlier, later in pairwise(broker.deliveries(GROUP))]


@pytest.mark.parametrize("delays", [(1,), (45, 7), [10_000, 2], (604_800,)])
def test_a_message_waits_as_long_as_the_application_wants(broker, delays):
    """Most of these delays are no level: the message waits in several queues, and its handler sees it once for each."""
    broker.join(GROUP, [ORDERS], fail, retry_delays=delays)
    broker.run_until_done()

    assert waits_s(broker) == list(delays)
    assert [one.origin.attempt for one in broker.deliveries(GROUP)] == list(range(1, len(delays) + 2))
    assert [letter.origin.attempt for letter in broker.dead_letters(GROUP)] == [len(delays) + 1]


def test_the_last_delay_counts_for_all_retries_that_follow(broker):
    broker.join(GROUP, [ORDERS], fail, retry_delays=[45, 7], max_retries=4)
    broker.run_until_done()

    assert waits_s(broker) == [45, 7, 7, 7]


def test_a_level_counts_before_the_delays_of_the_application(broker):
    def handle(_: list[Message]) -> object:
        return None if broker.deliveries(GROUP) else Retry(level=4)

    broker.join(GROUP, [ORDERS], handle, retry_delays=[45])
    broker.run_until_done()

    assert waits_s(broker) == [30]


def test_in_order_the_queue_waits_so_long_and_without_limit(broker):
    broker.send(ORDERS, "18")

    def handle(messages: list[Message]) -> None:
        if messages[0].value() == b"17" and len(broker.deliveries(GROUP)) < 4:
            fail(messages)

    broker.join(GROUP, [ORDERS], handle, orderly=True, batch_size=1, retry_delays=[45, 7])
    broker.run_until_done()

    assert [(one.message.value(), round(one.at_s)) for one in broker.deliveries(GROUP)] == [
        (b"17", 0),
        (b"17", 45),
        (b"17", 52),
        (b"17", 59),
        (b"17", 66),
        (b"18", 66),
    ]


def test_while_a_message_waits_others_of_its_queue_are_handled(broker):
    """A message that waits in several queues of the retry topic blocks none of them."""
    broker.send(ORDERS, "18")

    def handle(messages: list[Message]) -> object:
        if broker.failed(GROUP) and len(broker.failed(GROUP)) > 1:
            return None
        return Retry(messages=messages)

    broker.join(GROUP, [ORDERS], handle, batch_size=1, retry_delays=[45])
    broker.advance(44)
    broker.send(ORDERS, "19")
    broker.advance(0)
    assert [message.value() for message in broker.processed(GROUP)] == [b"19"]
    broker.run_until_done()

    assert sorted(message.value() for message in broker.processed(GROUP)) == [b"17", b"18", b"19"]
    assert {round(one.at_s) for one in broker.deliveries(GROUP) if one.origin.attempt == 2} == {45}


@pytest.mark.parametrize("wrong", [(), (0,), (1.5,), (604_801,), "45", (True,), 45, {45}])
def test_a_delay_that_cannot_be_kept_is_refused(wrong):
    with pytest.raises(InvalidUsage, match=r"^retry_delays is .*; it must be a list of one or more whole numbers"):
        RetryRules(in_place=False, retry_delays=wrong)


def test_without_retries_a_message_is_a_dead_letter_at_once(broker):
    broker.join(GROUP, [ORDERS], fail, max_retries=0, retry_delays=[45])
    broker.run_until_done()

    assert [one.at_s for one in broker.deliveries(GROUP)] == [0]
    assert [letter.origin.attempt for letter in broker.dead_letters(GROUP)] == [1]


def test_a_function_receives_a_dead_letter_before_it_is_stored(broker):
    """With its origin as the dead letter has it, and the exception, such as for a service that collects errors."""
    told: list[tuple[Message, Origin, BaseException | None]] = []

    def note(message: Message, origin: Origin, problem: BaseException | None) -> None:
        assert broker.dead_letters(GROUP) == []
        told.append((message, origin, problem))

    broker.join(GROUP, [ORDERS], fail, max_retries=1, on_dead_letter=note)
    broker.run_until_done()

    [(message, origin, problem)] = told
    assert message.value() == b"17"
    assert isinstance(problem, LookupError)
    assert [letter.origin for letter in broker.dead_letters(GROUP)] == [origin]
    assert (origin.attempt, origin.error, origin.error_type) == (2, "LookupError: no such order", "LookupError")


def test_a_message_that_the_function_takes_is_not_stored(broker):
    broker.send(ORDERS, "18")
    taken: list[bytes | None] = []

    def take(message: Message, _origin: Origin, problem: BaseException | None) -> bool:
        assert problem is None
        taken.append(message.value())
        return message.value() == b"17"

    broker.join(GROUP, [ORDERS], lambda messages: DeadLetter(messages, "wrong"), on_dead_letter=take)
    broker.run_until_done()

    assert sorted(taken) == [b"17", b"18"]
    assert [letter.message.value() for letter in broker.dead_letters(GROUP)] == [b"18"]
    assert sum(broker.committed(GROUP).values()) == 2


def test_an_async_function_is_awaited_where_the_handler_is(broker):
    loops = []

    async def handle(messages: list[Message]) -> object:
        loops.append(asyncio.get_running_loop())
        return DeadLetter(messages, "wrong")

    async def take(_message: Message, _origin: Origin, _problem: BaseException | None) -> bool:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return True

    broker.join(GROUP, [ORDERS], handle, on_dead_letter=take)
    broker.run_until_done()

    assert len(loops) == 2
    assert len(set(loops)) == 1
    assert broker.dead_letters(GROUP) == []
    assert broker.committed(GROUP)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_exception_of_the_function_loses_no_message(broker, caplog, kind):
    def raise_it(*_: object) -> None:
        raise ConnectionError("no database")

    async def handle(messages: list[Message]) -> None:
        fail(messages)

    async def raise_there(*_: object) -> None:
        raise_it()

    if kind == "sync":
        broker.join(GROUP, [ORDERS], fail, max_retries=0, on_dead_letter=raise_it)
    else:
        broker.join(GROUP, [ORDERS], handle, max_retries=0, on_dead_letter=raise_there)
    broker.run_until_done()

    assert len(broker.dead_letters(GROUP)) == 1
    assert (
        "on_dead_letter raised an exception for message 0 of orders-0, which is stored in the dead letter topic: "
        "ConnectionError('no database')"
    ) in caplog.messages


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_another_result_of_the_function_ends_run(broker, kind):
    async def handle(messages: list[Message]) -> None:
        fail(messages)

    async def answer(*_: object) -> str:
        return "yes"

    if kind == "sync":
        broker.join(GROUP, [ORDERS], fail, max_retries=0, on_dead_letter=lambda *_: "yes")
    else:
        broker.join(GROUP, [ORDERS], handle, max_retries=0, on_dead_letter=answer)
    with pytest.raises(InvalidUsage, match="on_dead_letter returned 'yes'; it must return True, False or None"):
        broker.run_until_done()


def test_an_async_function_needs_an_async_handler(broker):
    async def take(*_: object) -> None: ...

    with Consumer(GROUP, [ORDERS], broker.bootstrap) as consumer:
        with pytest.raises(InvalidUsage, match="on_dead_letter is an async function, which needs an async handler"):
            consumer.run(fail, on_dead_letter=take)
        with pytest.raises(InvalidUsage, match="on_dead_letter is 7; it must be a function"):
            consumer.run(fail, on_dead_letter=7)


class Mute(Exception):
    """An exception with a long text of characters that take 3 bytes each."""

    def __str__(self) -> str:
        return "世" * 1_000


@pytest.mark.parametrize(
    ("problem", "error_type"),
    [
        (LookupError("no such order"), "LookupError"),
        (decimal.InvalidOperation(), "decimal.InvalidOperation"),
        (Mute(), f"{__name__}.Mute"),
        (ValueError("\udcff" * 2_000), "ValueError"),
    ],
)
def test_a_failed_message_has_the_type_of_the_exception_and_a_bounded_text(broker, problem, error_type):
    def handle(_: list[Message]) -> None:
        raise problem

    broker.join(GROUP, [ORDERS], handle, max_retries=1)
    broker.run_until_done()

    [retried] = [one.origin for one in broker.deliveries(GROUP) if one.origin.attempt == 2]
    [letter] = broker.dead_letters(GROUP)
    for origin in (retried, letter.origin):
        assert origin.error_type == error_type
        assert origin.error.startswith(type(problem).__name__)
        assert MAX_ERROR_BYTES - 3 < len(origin.error.encode()) <= MAX_ERROR_BYTES or len(origin.error) < 30
        assert "\ufffd" not in origin.error


def test_a_reason_has_no_type(broker):
    broker.join(GROUP, [ORDERS], lambda messages: DeadLetter(messages, "é" * 900))
    broker.run_until_done()

    [letter] = broker.dead_letters(GROUP)
    assert (letter.origin.error_type, letter.origin.error) == ("", "é" * 512)
    assert [name for name, _ in letter.message.headers() if "type" in name or "wait" in name] == []
