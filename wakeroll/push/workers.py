"""The workers that call the handler: threads, or tasks of an event loop if the handler is asynchronous."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Protocol, cast

from confluent_kafka import Message

from wakeroll.push.dispatch import Dispatch
from wakeroll.push.queue_work import Batch

Handler = Callable[[list[Message]], object]
"""Receives messages of one queue in order of offset; it may be an ``async`` function. They are processed when it
returns."""

JOIN_S = 1.0
"""How long to wait for a thread that has nothing more to do (s)."""


class Workers(Protocol):
    """Call the handler, a bounded number of times at once."""

    def wake(self) -> None:
        """Note that batches were added. Any thread may call it."""

    def close(self) -> None:
        """End the workers, after `Dispatch.close`; a thread whose handler does not return ends when it does."""


def start_workers(handler: Handler, count: int, dispatch: Dispatch, name: str) -> Workers:
    """Start workers of the kind that the handler needs.

    Args:
        handler: a function, or an ``async`` function.
        count: how many calls of the handler run at once.
        dispatch: has the batches.
        name: of the threads.
    """
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        return _Tasks(cast(Callable[[list[Message]], Awaitable[object]], handler), count, dispatch, name)
    return _Threads(handler, count, dispatch, name)


class _Threads:
    """A thread per worker. The threads are daemons: a handler that never returns must not keep the process alive."""

    def __init__(self, handler: Handler, count: int, dispatch: Dispatch, name: str) -> None:
        self._handler = handler
        self._dispatch = dispatch
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Do nothing: the threads wait for a batch in `Dispatch.next`."""

    def close(self) -> None:
        for thread in self._threads:
            thread.join(JOIN_S)

    def _work(self) -> None:
        handler, dispatch = self._handler, self._dispatch
        finished: Batch | None = None
        while (batch := dispatch.next(finished, wait=True)) is not None:
            try:
                handler(batch.messages)
            except BaseException as problem:  # SystemExit, too, is raised again where the application waits
                dispatch.fail(batch, problem)
                finished = None
            else:
                finished = batch


class _Tasks:
    """One task per worker, in an event loop with a thread of its own."""

    def __init__(
        self, handler: Callable[[list[Message]], Awaitable[object]], count: int, dispatch: Dispatch, name: str
    ) -> None:
        self._handler = handler
        self._count = count
        self._dispatch = dispatch
        self._loop = asyncio.new_event_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._is_closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._loop.call_soon_threadsafe(self._wake_next)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._is_closed.set)
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work_until_closed())

    async def _work_until_closed(self) -> None:
        tasks = [asyncio.create_task(self._work()) for _ in range(self._count)]
        await self._is_closed.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        dispatch = self._dispatch
        finished: Batch | None = None
        while True:
            batch = dispatch.next(finished, wait=False)
            finished = None
            if batch is None:
                idle = self._loop.create_future()
                self._idle.append(idle)
                await idle
                continue
            self._wake_next()  # one task wakes the next, as long as there is work
            try:
                await self._handler(batch.messages)
            except BaseException as problem:
                dispatch.fail(batch, problem)
                if self._is_closed.is_set():
                    raise
            else:
                finished = batch

    def _wake_next(self) -> None:
        if self._idle and self._dispatch.is_ready:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
