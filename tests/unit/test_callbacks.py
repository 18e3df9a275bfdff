"""The callbacks of a consumer: no message of a queue comes before `on_assigned` has returned once."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, Consumer
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
        self.seek: Any = None
        self._failures = failures

    def __call__(self, queues: list[Queue]) -> None:
        self.calls.append(queues)
        if len(self.calls) <= self._failures:
            raise ConnectionError("the database is not reachable")
        for queue in queues:
            self.seek(queue, 7)


def test_poll_asks_again_before_the_first_message(broker):
    stored = StoredOffsets(failures=2)
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first", on_assigned=stored) as consumer:
        stored.seek = consumer.seek
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
        stored.seek = consumer.seek
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
        stored.seek = consumer.seek
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
            inner = consumer._consumer
            assert inner is not None
            stored.seek = inner.seek
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
        on_assigned=lambda queues: told.append(("assigned", len(queues))),
        on_revoked=lambda queues: told.append(("revoked", len(queues))),
    )
    with one:
        wait_until(lambda: one.poll(0.05) or len(one.assignment()) == 2, "both queues")
        with Consumer("billing", ["returns"], broker.bootstrap, client_id="b") as other:
            wait_until(lambda: one.poll(0.05) or other.poll(0.05) or len(other.assignment()) == 1, "one queue each")
        wait_until(lambda: one.poll(0.05) or len(one.assignment()) == 2, "both queues again")
    assert told == [("assigned", 2), ("revoked", 1), ("assigned", 1), ("revoked", 2)]
