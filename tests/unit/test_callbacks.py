"""The callbacks of a consumer: no message of a queue comes before `on_assigned` has returned once."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, Consumer, InvalidUsage, Retry
from wakeroll.testing import MemoryBroker
from wakeroll_model.queue import Queue

ORDERS = Queue("orders", "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        for number in range(10):
            broker.send("orders", str(number))
        yield broker


class StoredOffsets:
    """A database with offsets that cannot be reached at first."""

    def __init__(self, failures: int) -> None:
        self.calls: list[list[Queue]] = []
        self._failures = failures

    def __call__(self, _consumer: Any, queues: list[Queue]) -> dict[Queue, int]:
        self.calls.append(queues)
        if len(self.calls) <= self._failures:
            raise ConnectionError("the database is not reachable")
        return dict.fromkeys(queues, 7)


def test_poll_asks_again_before_the_first_message(broker):
    stored = StoredOffsets(failures=2)
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=stored) as consumer:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                wait_until(lambda: consumer.poll(0.1), "the queue is assigned")
        first = wait_until(lambda: consumer.poll(0.1), "a message")
        assert first.offset() == 7
        assert stored.calls == [[ORDERS]] * 3
        assert consumer.poll(1).offset() == 8
    assert len(stored.calls) == 3


def test_run_asks_again_before_the_first_message(broker):
    stored, offsets = StoredOffsets(failures=1), []

    def handle(messages: list[Any]) -> None:
        offsets.extend(message.offset() for message in messages)
        if offsets[-1] == 9:
            consumer.stop()

    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=stored) as consumer:
        with pytest.raises(ConnectionError):
            consumer.run(handle, on_error="raise")
        assert offsets == []
        consumer.run(handle, on_error="raise")
    assert offsets == [7, 8, 9]
    assert stored.calls == [[ORDERS]] * 2
    assert broker.committed("billing") == {ORDERS: 10}


def test_run_asks_again_for_the_queues_of_a_poll_that_failed(broker):
    stored, offsets = StoredOffsets(failures=1), []

    def handle(messages: list[Any]) -> None:
        offsets.extend(message.offset() for message in messages)
        consumer.stop()

    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=stored) as consumer:
        with pytest.raises(ConnectionError):
            wait_until(lambda: consumer.poll(0.1), "the queue is assigned")
        consumer.run(handle, batch_size=1, workers=1, on_error="raise")
    assert offsets[0] == 7


def test_an_async_consumer_asks_again_before_the_first_message(broker):
    stored = StoredOffsets(failures=1)

    async def test() -> None:
        async with AsyncConsumer(
            "billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=stored
        ) as consumer:
            with pytest.raises(ConnectionError):
                await consumer.poll(30)
            message = await consumer.poll(30)
            assert message is not None
            assert message.offset() == 7

    asyncio.run(test())


def test_a_queue_that_comes_back_is_announced_again(broker):
    """Each assignment of a queue is one; the second member's leaving gives the first one its queue again."""
    broker.create_topic("returns", queues=2)
    told: list[tuple[str, int]] = []
    one = Consumer(
        "billing",
        ["returns"],
        broker.bootstrap,
        client_id="a",
        on_assigned=lambda _, queues: told.append(("assigned", len(queues))),
        on_revoked=lambda _, queues: told.append(("revoked", len(queues))),
    )
    with one:
        wait_until(lambda: one.poll(0.05) or len(one.assignment()) == 2, "both queues")
        with Consumer("billing", ["returns"], broker.bootstrap, client_id="b") as other:
            wait_until(lambda: one.poll(0.05) or other.poll(0.05) or len(other.assignment()) == 1, "one queue each")
        wait_until(lambda: one.poll(0.05) or len(one.assignment()) == 2, "both queues again")
    assert told == [("assigned", 2), ("revoked", 1), ("assigned", 1), ("revoked", 2)]


# --- revoked or lost ---


class Told:
    """Notes what the callbacks of one consumer are told, and what it can commit then."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Queue], bool]] = []

    def settings(self, *, tells_lost: bool = True) -> dict[str, Any]:
        found: dict[str, Any] = {"on_revoked": self._note("revoked")}
        return found | ({"on_lost": self._note("lost")} if tells_lost else {})

    def _note(self, name: str) -> Any:
        return lambda consumer, queues: self.calls.append((name, queues, consumer.commit(1.0)))


@pytest.mark.parametrize("tells_lost", [True, False])
def test_a_queue_that_another_member_may_own_is_lost(broker, tells_lost):
    """A database transaction is rolled back then, and committed when a queue is revoked."""
    told = Told()
    with Consumer(
        "billing",
        ["orders"],
        broker.bootstrap,
        client_id="a",
        consume_from="first",
        **told.settings(tells_lost=tells_lost),
    ) as consumer:
        wait_until(lambda: consumer.poll(0.1), "a message")
        broker._coordinator.evict("billing", "a")
        wait_until(lambda: told.calls, "the queue is lost", between=lambda: consumer.poll(0.1))
        assert told.calls[0][:2] == ("lost" if tells_lost else "revoked", [ORDERS])
        wait_until(lambda: consumer.assignment(), "it is back", between=lambda: consumer.poll(0.05))
    assert [name for name, _, _ in told.calls] == [told.calls[0][0], "revoked"]
    assert told.calls[1] == ("revoked", [ORDERS], True)


def test_a_run_tells_revoked_and_lost_queues_apart(broker):
    told, begun = Told(), threading.Event()
    broker.create_topic("returns", queues=2)

    def handle(messages: list[Any]) -> Retry | None:
        begun.set()
        return Retry(messages=messages[:1]) if messages[0].topic() == "orders" else None

    with Consumer(
        "billing", ["orders", "returns"], broker.bootstrap, client_id="a", consume_from="first", **told.settings()
    ) as consumer:
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        assert begun.wait(30)
        wait_until(lambda: len(consumer.assignment()) == 3, "all queues")
        wait_until(lambda: len(consumer.assignment(with_retries=True)) > 3, "those of the retry topic too")
        assert len(consumer.lag()) == 3
        assert len(consumer.lag(with_retries=True)) > 3
        with Consumer("billing", ["orders", "returns"], broker.bootstrap, client_id="b") as other:
            wait_until(lambda: told.calls, "queues are revoked", between=lambda: other.poll(0.05))
            assert {name for name, _, _ in told.calls} == {"revoked"}
        broker._coordinator.evict("billing", "a")
        wait_until(lambda: any(name == "lost" for name, _, _ in told.calls), "queues are lost")
        consumer.stop()
        thread.join()
    assert {queue.topic for _, queues, _ in told.calls for queue in queues} == {"orders", "returns"}


# --- wrong callbacks ---


def one_argument(queues: list[Queue]) -> None:
    del queues


async def asynchronous(_consumer: object, _queues: list[Queue]) -> None:
    pass


@pytest.mark.parametrize("name", ["on_assigned", "on_revoked", "on_lost"])
@pytest.mark.parametrize(
    ("callback", "sentence"),
    [
        (
            one_argument,
            r"is <function one_argument .*, which cannot be called with two arguments; since this release, ",
        ),
        ([].append, "which cannot be called with two arguments"),
        (asynchronous, "is an async function, which only AsyncConsumer awaits; pass an ordinary one"),
        (7, "is 7; it must be a function of the consumer and a list of queues, or None"),
    ],
)
def test_a_callback_that_cannot_be_called_is_refused_at_once(broker, name, callback, sentence):
    with pytest.raises(InvalidUsage, match=rf"^{name} .*{sentence}"):
        Consumer("billing", ["orders"], broker.bootstrap, **{name: callback})
    if callback is not asynchronous:
        with pytest.raises(InvalidUsage, match=rf"^{name} .*{sentence}"):
            AsyncConsumer("billing", ["orders"], broker.bootstrap, **{name: callback})


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (7, r"^on_assigned returned 7; it must return None, or queues and where to start them$"),
        ({("others", 0): 0}, r"^on_assigned returned a start of others-0; it was called with orders-0$"),
        ({ORDERS: "middle"}, r"^offset is 'middle'; it must be"),
    ],
)
def test_a_start_that_is_none_is_refused_in_poll(broker, result, sentence):
    with (
        Consumer("billing", ["orders"], broker.bootstrap, on_assigned=lambda *_: result) as consumer,
        pytest.raises(InvalidUsage, match=sentence),
    ):
        wait_until(lambda: consumer.poll(0.1), "the queue is assigned")


# --- asyncio ---


def test_async_callbacks_run_in_the_event_loop_and_may_use_the_consumer(broker):
    """The thread of the consumer waits for them, and makes their calls meanwhile."""
    told: list[object] = []

    async def test() -> None:
        here = asyncio.get_running_loop()

        async def assigned(consumer: AsyncConsumer, queues: list[Queue]) -> dict[Queue, int]:
            assert asyncio.get_running_loop() is here
            await asyncio.sleep(0)
            await consumer.seek(queues[0], "last")
            told.append((consumer.position(queues[0]), await consumer.lag()))
            return {queues[0]: 8}

        async def revoked(consumer: AsyncConsumer, queues: list[Queue]) -> None:
            told.append((queues, await consumer.commit()))
            await consumer.close()  # it is being closed
            for call in (consumer.poll(), consumer.consume()):
                with pytest.raises(InvalidUsage, match=r"^a callback of this AsyncConsumer called poll\("):
                    await call

        async with AsyncConsumer(
            "billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=assigned, on_revoked=revoked
        ) as consumer:
            message = await consumer.poll(30)
            assert message is not None
            assert message.offset() == 8
            await consumer.poll(0)

    asyncio.run(asyncio.wait_for(test(), 30))
    assert told == [(10, {ORDERS: 0}), ([ORDERS], True)]
    assert broker.committed("billing") == {ORDERS: 10}


def test_async_callbacks_of_run_may_wait_for_its_handler(broker):
    """Handler and callbacks share the event loop."""
    told: list[str] = []

    async def test() -> None:
        async def assigned(consumer: AsyncConsumer, _queues: list[Queue]) -> None:
            told.append("assigned")
            assert await consumer.lag() == {ORDERS: 10}

        async def handle(messages: list[Any]) -> None:
            told.extend("message" for _ in messages)
            if told.count("message") == 10:
                consumer.stop()

        async with AsyncConsumer(
            "billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=assigned
        ) as consumer:
            await consumer.run(handle, workers=2, batch_size=3)

    asyncio.run(asyncio.wait_for(test(), 30))
    assert told == ["assigned"] + ["message"] * 10


def test_an_exception_of_an_async_callback_is_that_of_the_call(broker):
    async def fail(*_: object) -> None:
        raise ConnectionError("the database is not reachable")

    async def test() -> None:
        async with AsyncConsumer("billing", ["orders"], broker.bootstrap, on_assigned=fail) as consumer:
            with pytest.raises(ConnectionError):
                await consumer.poll(30)

    asyncio.run(asyncio.wait_for(test(), 30))
