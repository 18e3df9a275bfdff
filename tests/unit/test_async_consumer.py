"""The consumer for asyncio, with the broker in memory."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from wakeroll import AsyncConsumer, InvalidUsage, Queue
from wakeroll.testing import MemoryBroker

PATIENCE_S = 30.0
ORDERS = Queue("orders", "", 0)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders")
        yield broker


def send(broker: MemoryBroker, *values: int) -> None:
    for value in values:
        broker.send("orders", str(value))


def consumer_of(broker: MemoryBroker, **settings: Any) -> AsyncConsumer:
    return AsyncConsumer("billing", ["orders"], broker.bootstrap, **{"consume_from": "first"} | settings)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, PATIENCE_S))


@asynccontextmanager
async def ticking() -> AsyncIterator[list[float]]:
    """Note the times at which the event loop is free."""
    times: list[float] = []

    async def tick() -> None:
        while True:
            times.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.01)

    task = asyncio.create_task(tick())
    yield times
    task.cancel()


def test_messages_come_in_a_loop_and_are_committed_at_the_end(broker):
    send(broker, 1, 2, 3)
    values = []

    async def test() -> None:
        async with consumer_of(broker) as consumer:
            async for message in consumer:
                values.append(message.value())
                if len(values) == 3:
                    break

    run(test())
    assert values == [b"1", b"2", b"3"]
    assert broker.committed("billing") == {ORDERS: 3}


def test_the_event_loop_is_free_while_it_waits(broker):
    async def test() -> None:
        async with consumer_of(broker) as consumer, ticking() as times:
            assert await consumer.poll(0.5) is None
            assert len(times) > 5

    run(test())


def test_no_message_is_lost_when_a_poll_is_cancelled(broker):
    """It may have arrived in the thread at that moment; it counts as not delivered."""
    values = []

    async def test() -> None:
        async with consumer_of(broker) as consumer:
            for number in range(30):
                send(broker, number)
                for _ in range(3):
                    try:
                        message = await asyncio.wait_for(consumer.poll(0.1), 0.001 * (number % 7))
                    except TimeoutError:
                        continue
                    if message is not None:
                        values.append(int(message.value()))
            while len(values) < 30:
                if (message := await consumer.poll()) is not None:
                    values.append(int(message.value()))

    run(test())
    assert values == list(range(30))
    assert broker.committed("billing") == {ORDERS: 30}


def test_a_message_whose_processing_raised_is_not_committed(broker):
    send(broker, 1, 2)

    async def test() -> None:
        async with consumer_of(broker) as consumer:
            async for message in consumer:
                if message.value() == b"2":
                    raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        run(test())
    assert broker.committed("billing") == {ORDERS: 1}


def test_run_calls_the_handler_in_this_event_loop(broker):
    send(broker, *range(10))
    handled: list[bytes] = []

    async def test() -> None:
        here = asyncio.get_running_loop()
        async with consumer_of(broker) as consumer:

            async def handle(messages: list[Any]) -> None:
                assert asyncio.get_running_loop() is here
                await asyncio.sleep(0)
                handled.extend(message.value() for message in messages)
                if len(handled) == 10:
                    consumer.stop()

            await consumer.run(handle, workers=1)
            assert await consumer.commit()

    run(test())
    assert handled == [str(number).encode() for number in range(10)]
    assert broker.committed("billing") == {ORDERS: 10}


def test_a_cancelled_run_ends_its_calls_first(broker):
    send(broker, 1)
    ended = []

    async def test() -> None:
        begun = asyncio.Event()

        async def handle(_: object) -> None:
            begun.set()
            await asyncio.sleep(0.2)
            ended.append(1)

        async with consumer_of(broker) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            assert ended == [1]

    run(test())
    assert broker.committed("billing") == {ORDERS: 1}


def test_seek_pause_and_the_others_are_those_of_the_consumer(broker):
    send(broker, 1, 2, 3)

    async def test() -> None:
        async with consumer_of(broker) as consumer:
            assert (await consumer.poll(PATIENCE_S)).offset() == 0
            [queue] = consumer.assignment()
            await consumer.seek(queue, 2)
            assert (await consumer.poll()).offset() == 2
            assert consumer.position(queue) == 3
            assert await consumer.commit()
            assert await consumer.committed(queue) == 3
            assert (await consumer.first_offset(queue), await consumer.end_offset(queue)) == (0, 3)
            assert await consumer.offsets_for_times({queue: 0}) == {queue: 0}
            await consumer.seek(queue, "first")
            assert [message.offset() for message in await consumer.consume(3)] == [0, 1, 2]
            assert await consumer.lag() == {queue: 0}
            consumer.pause([queue])
            consumer.resume([queue])
            assert len((await consumer.fetch(queue, 0)).messages) == 3
            assert consumer.group_id == "billing"
            assert "@" in consumer.client_id

    run(test())


def test_it_says_what_is_wrong(broker):
    async def test() -> None:
        consumer = consumer_of(broker)
        with pytest.raises(InvalidUsage, match="has not joined; use `async with`"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(InvalidUsage, match="it must be an async function"):
                await consumer.run(print)  # type: ignore[arg-type]
            with pytest.raises(InvalidUsage, match="it must be 0 or more seconds"):
                await consumer.poll(-1)
        await consumer.close()
        with pytest.raises(InvalidUsage, match="is closed"):
            await consumer.poll()
        with pytest.raises(InvalidUsage, match="has been used"):
            async with consumer:
                pass
        with pytest.raises(InvalidUsage, match="bootstrap is empty"):
            async with AsyncConsumer("billing", ["orders"], ""):
                pass

    run(test())
