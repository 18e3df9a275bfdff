"""An AsyncConsumer whose task is cancelled at any await: it ends, and neither a thread nor a member is left."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from typing import Any

import pytest

from tests.support.waiting import wait_until
from wakeroll import AsyncConsumer, Consumer, InvalidUsage
from wakeroll.testing import MemoryBroker

PATIENCE_S = 30.0
AWAITS = 200
"""More than any of these programs has."""


@pytest.fixture(scope="module")
def broker() -> Iterator[MemoryBroker]:
    with MemoryBroker() as broker:
        broker.create_topic("orders", queues=2)
        for number in range(4):
            broker.send("orders", str(number))
        yield broker


class Cancelled:
    """Awaits a program, and cancels its task at the await of a chosen number."""

    def __init__(self, program: Coroutine[Any, Any, None], at: int) -> None:
        self.count = 0
        self._program = program
        self._at = at

    def __await__(self) -> Generator[Any, Any, None]:
        task = asyncio.current_task()
        assert task is not None
        send: Callable[[Any], Any] = self._program.send
        value: Any = None
        while True:
            try:
                awaited = send(value)
            except StopIteration:
                return
            self.count += 1
            if self.count == self._at:
                task.cancel()
            try:
                value, send = (yield awaited), self._program.send
            except BaseException as problem:
                value, send = problem, self._program.throw


async def _at_every_await(program: Callable[[int], Coroutine[Any, Any, None]]) -> int:
    """Cancel a program at its first await, then at its second, and so on; return how many it has."""
    for at in range(1, AWAITS):
        cancelled = Cancelled(program(at), at)

        async def run(cancelled: Awaitable[None] = cancelled) -> None:
            await cancelled

        task = asyncio.create_task(run())
        done, _ = await asyncio.wait([task], timeout=PATIENCE_S)
        assert done, f"cancelled at await {at}, the program does not end"
        if cancelled.count < at:
            task.result()
            return at - 1
        assert task.cancelled() or task.exception() is None, task.exception()
    raise AssertionError("more awaits than expected")


def nothing_is_left(broker: MemoryBroker, group_id: str) -> None:
    wait_until(lambda: not broker.assignment(group_id), f"no member of {group_id} is left")
    wait_until(lambda: not our_threads(), "no thread is left", state=lambda: str(our_threads()))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("wakeroll")]


def consumer_of(broker: MemoryBroker, group_id: str) -> AsyncConsumer:
    return AsyncConsumer(group_id, ["orders"], broker.bootstrap, consume_from="first")


def test_a_program_that_polls(broker):
    async def poll(number: int) -> None:
        async with consumer_of(broker, f"polls-{number}") as consumer:
            for _ in range(3):
                assert await consumer.poll(PATIENCE_S) is not None
            await consumer.commit()

    awaits = asyncio.run(_at_every_await(poll))

    assert awaits >= 4  # joining, the first message, the commit and leaving; the other messages are there already
    for number in range(1, awaits + 2):
        nothing_is_left(broker, f"polls-{number}")


def test_a_program_that_consumes_batches(broker):
    async def consume(number: int) -> None:
        seen = 0
        async with consumer_of(broker, f"batches-{number}") as consumer:
            while seen < 4:
                seen += len(await consumer.consume(3, PATIENCE_S))

    awaits = asyncio.run(_at_every_await(consume))

    assert awaits >= 4
    for number in range(1, awaits + 2):
        nothing_is_left(broker, f"batches-{number}")


def test_a_program_that_runs_a_handler(broker):
    async def run(number: int) -> None:
        handled: list[object] = []
        async with consumer_of(broker, f"runs-{number}") as consumer:

            async def handle(messages: list[object]) -> None:
                handled.extend(messages)
                await asyncio.sleep(0)
                if len(handled) == 4:
                    consumer.stop()

            await consumer.run(handle)

    awaits = asyncio.run(_at_every_await(run))

    assert awaits >= 3
    for number in range(1, awaits + 2):
        nothing_is_left(broker, f"runs-{number}")


def test_a_run_that_is_cancelled_before_its_thread_begins_it(broker):
    """The thread is still at work for a poll that was cancelled."""

    async def test() -> None:
        is_called = asyncio.Event()

        async def handle(_: object) -> None:
            is_called.set()

        async with AsyncConsumer("late", ["orders"], broker.bootstrap, consume_from="first") as consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(5), 0)
            running = asyncio.create_task(consumer.run(handle))
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(running, PATIENCE_S)
            running = asyncio.create_task(consumer.run(handle))
            await asyncio.wait_for(is_called.wait(), PATIENCE_S)
            await asyncio.wait_for(asyncio.gather(consumer.close(), running), PATIENCE_S)

    asyncio.run(test())
    nothing_is_left(broker, "late")


def test_close_ends_a_run_that_its_thread_has_not_begun(broker):
    async def handle(_: object) -> None:
        pass

    async def test() -> None:
        consumer = AsyncConsumer("closed", ["orders"], broker.bootstrap)
        async with consumer:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.poll(5), 0)
            running = asyncio.create_task(consumer.run(handle))
            await asyncio.sleep(0)
            await asyncio.wait_for(consumer.close(), PATIENCE_S)
            await asyncio.wait_for(running, PATIENCE_S)

    asyncio.run(test())
    nothing_is_left(broker, "closed")


def test_a_consumer_that_cannot_join_leaves_no_thread(broker):
    async def test() -> None:
        with pytest.raises(InvalidUsage, match="strategy_params"):
            async with AsyncConsumer("wrong", ["orders"], broker.bootstrap, strategy_params={"x": object()}):
                pass

    asyncio.run(test())
    nothing_is_left(broker, "wrong")


def test_stop_before_run_ends_it(broker):
    """A signal handler may call it just before; the next run after that one consumes again."""
    handled: list[object] = []

    def handle(messages: list[object]) -> None:
        handled.extend(messages)
        if len(handled) == 4:
            consumer.stop()

    with Consumer("stopped", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        consumer.stop()
        consumer.run(handle)
        assert handled == []
        consumer.run(handle)
        assert len(handled) == 4
    nothing_is_left(broker, "stopped")
