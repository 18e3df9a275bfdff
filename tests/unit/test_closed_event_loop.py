"""An AsyncConsumer whose event loop is closed under it, or that nobody refers to any more: it ends and leaves."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, InvalidUsage, NotReachable
from wakeroll.testing import MemoryBroker

PATIENCE_S = 30.0


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=2)
        yield broker


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(autouse=True)
def reports(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What asyncio and the executors report, such as an exception that was never retrieved."""
    caplog.set_level(logging.WARNING)
    return caplog


def nothing_is_left(broker: MemoryBroker) -> None:
    def ours() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("wakeroll")]

    wait_until(lambda: not broker.assignment("billing"), "no member is left")
    wait_until(lambda: not ours(), "no thread is left", state=ours)


def reports_of_asyncio(reports: pytest.LogCaptureFixture) -> list[str]:
    gc.collect()
    return [
        record.getMessage()
        for record in reports.records
        # A loop that is closed under its tasks reports them; that is the application's doing.
        if not record.name.startswith("wakeroll") and "Task was destroyed" not in record.getMessage()
    ]


async def joined(broker: MemoryBroker) -> AsyncConsumer:
    consumer = AsyncConsumer("billing", ["orders"], broker.bootstrap, consume_from="first")
    await consumer.__aenter__()
    return consumer


async def an_idle_consumer(broker: MemoryBroker) -> list[object]:
    return [await joined(broker)]


async def a_consumer_that_polls(broker: MemoryBroker) -> list[object]:
    consumer = await joined(broker)
    polling = asyncio.create_task(consumer.poll(100))
    await asyncio.sleep(0)
    return [consumer, polling]


async def a_consumer_that_joins(broker: MemoryBroker) -> list[object]:
    joining = asyncio.create_task(joined(broker))
    await asyncio.sleep(0)
    return [joining]


async def a_run_without_messages(broker: MemoryBroker) -> list[object]:
    async def handle(_: object) -> None:
        pass

    consumer = await joined(broker)
    running = asyncio.create_task(consumer.run(handle))
    while not consumer._joined.is_running:
        await asyncio.sleep(0)
    return [consumer, running]


async def a_run_whose_calls_wait(broker: MemoryBroker) -> list[object]:
    is_called = asyncio.Event()

    async def handle(_: object) -> None:
        is_called.set()
        await asyncio.Event().wait()

    consumer = await joined(broker)
    running = asyncio.create_task(consumer.run(handle))
    broker.send("orders", "1")
    await is_called.wait()
    return [consumer, running]


async def a_run_that_receives_messages(broker: MemoryBroker) -> list[object]:
    """The next call comes when the loop is closed."""
    is_called = asyncio.Event()

    async def handle(_: object) -> None:
        is_called.set()

    consumer = await joined(broker)
    running = asyncio.create_task(consumer.run(handle))
    broker.send("orders", "1")
    await is_called.wait()
    for number in range(100):
        broker.send("orders", str(number))
    return [consumer, running]


async def a_consumer_that_leaves(broker: MemoryBroker) -> list[object]:
    consumer = await joined(broker)
    leaving = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    return [consumer, leaving]


async def a_fetch(broker: MemoryBroker) -> list[object]:
    consumer = await joined(broker)
    fetching = asyncio.create_task(consumer.fetch(("orders", 0), 0, 600))
    await asyncio.sleep(0)
    return [consumer, fetching]


MOMENTS: list[Callable[[MemoryBroker], Coroutine[Any, Any, list[object]]]] = [
    an_idle_consumer,
    a_consumer_that_polls,
    a_consumer_that_joins,
    a_run_without_messages,
    a_run_whose_calls_wait,
    a_run_that_receives_messages,
    a_consumer_that_leaves,
    a_fetch,
]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_a_closed_loop_ends_it(broker, loop, reports, moment):
    """Its messages have had no attempt: none is in the retry topic."""
    kept = loop.run_until_complete(moment(broker))
    loop.close()

    nothing_is_left(broker)
    assert broker.failed("billing") == []
    assert reports_of_asyncio(reports) == []
    del kept


@pytest.mark.parametrize("moment", MOMENTS[:4], ids=lambda moment: moment.__name__)
def test_asyncio_run_ends_what_is_left(broker, reports, moment):
    """It cancels the tasks, and closes the loop."""
    kept = asyncio.run(moment(broker))

    nothing_is_left(broker)
    assert reports_of_asyncio(reports) == []
    del kept


def test_a_closed_loop_is_logged_and_the_consumer_is_closed(broker, loop, reports):
    [consumer] = loop.run_until_complete(an_idle_consumer(broker))
    loop.close()
    nothing_is_left(broker)

    [line] = [record.getMessage() for record in reports.records if "event loop" in record.getMessage()]
    assert "of group billing was closed before this AsyncConsumer, which leaves now; call `close`" in line
    with pytest.raises(InvalidUsage, match="is closed"):
        consumer.assignment()


def test_an_unprocessed_message_is_left_to_the_next_member(broker, loop):
    broker.send("orders", "1")

    async def receive() -> AsyncConsumer:
        consumer = await joined(broker)
        assert await consumer.poll(PATIENCE_S) is not None
        return consumer

    kept = loop.run_until_complete(receive())
    loop.close()
    nothing_is_left(broker)

    assert sum(broker.committed("billing").values()) == 0
    del kept


def test_garbage_leaves_though_the_loop_is_open(broker, loop):
    loop.run_until_complete(an_idle_consumer(broker))
    gc.collect()

    nothing_is_left(broker)


def test_an_orderly_end_is_not_logged(broker, reports):
    async def main() -> None:
        async with AsyncConsumer("billing", ["orders"], broker.bootstrap):
            pass

    asyncio.run(main())
    nothing_is_left(broker)

    assert reports.records == []


def test_a_join_that_fails_after_its_task_was_cancelled_is_not_reported(reports):
    """Asyncio would print "Future exception was never retrieved"."""

    async def main() -> None:
        nowhere = AsyncConsumer("billing", ["orders"], "127.0.0.1:1", connect_timeout=0.1)
        joining = asyncio.create_task(nowhere.__aenter__())
        await asyncio.sleep(0)
        joining.cancel()
        with pytest.raises(asyncio.CancelledError):
            await joining
        while any(thread.name == "wakeroll-async" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)

    asyncio.run(main())

    assert reports_of_asyncio(reports) == []


def test_a_join_that_fails_raises_its_error():
    async def main() -> None:
        with pytest.raises(NotReachable):
            async with AsyncConsumer("billing", ["orders"], "127.0.0.1:1", connect_timeout=0.1):
                pass

    asyncio.run(main())


def test_a_close_that_fails_after_its_task_was_cancelled_is_logged(broker, reports):
    def fail(*_: object) -> None:
        raise ValueError("the callback failed")

    async def main() -> None:
        consumer = AsyncConsumer("billing", ["orders"], broker.bootstrap, on_revoked=fail)
        await consumer.__aenter__()
        while not consumer.assignment():
            await consumer.poll(0.1)
        leaving = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving

    asyncio.run(main())
    nothing_is_left(broker)

    [line] = [record.getMessage() for record in reports.records]
    assert line == "close() of an AsyncConsumer raised an exception: ValueError('the callback failed')"


def test_it_needs_no_executor_of_the_loop(broker):
    """The application may have given it a small one whose threads are all at work, or have shut it down."""

    async def handle(_: object) -> None:
        pass

    async def main() -> None:
        async with AsyncConsumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
            running = asyncio.create_task(consumer.run(handle))
            while not consumer._joined.is_running:
                await asyncio.sleep(0)
            executor = ThreadPoolExecutor(1)
            asyncio.get_running_loop().set_default_executor(executor)
            executor.shutdown()
            assert await consumer.commit()
            assert await consumer.lag() is not None
            assert (await consumer.fetch(("orders", 0), 0, 0)).messages == []
            consumer.stop()
            await running

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
