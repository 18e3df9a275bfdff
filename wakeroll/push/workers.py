"""The workers that call the handler: threads, or tasks of an event loop if the handler is asynchronous."""

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, cast

from confluent_kafka import Message

from wakeroll.errors import WakerollError
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.queue_work import Batch

Handler = Callable[[list[Message]], object]
"""Receives messages of one queue in order of offset; it may be an ``async`` function. They are processed when it
returns None; otherwise it returns `Retry`, `DeadLetter` or a list of these."""

OnFailure = Callable[[Batch, object], None]
"""Called with a batch whose call did not process all messages, and its result or exception."""

JOIN_S = 1.0
"""How long to wait for the threads that have nothing more to do (s)."""

_CANCELLED = "a task of run() was cancelled: the handler, or a library that it uses, must cancel only tasks of its own"


class Workers(Protocol):
    """Call the handler, a bounded number of times at once."""

    def wake(self) -> None:
        """Note that batches were added. Any thread may call it."""

    def replace(self, batch: Batch, /) -> None:
        """Let another worker take the place of the one whose call is overdue."""

    def close(self) -> None:
        """End the workers, after `Dispatch.close`; a thread whose handler does not return ends when it does."""


def is_async(handler: Handler) -> bool:
    """Return whether a handler is an ``async`` function, or an object that is called like one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__)


def start_workers(handler: Handler, count: int, dispatch: Dispatch, on_failure: OnFailure, name: str) -> Workers:
    """Start workers of the kind that the handler needs.

    Args:
        handler: a function, or an ``async`` function.
        count: how many calls of the handler run at once.
        dispatch: has the batches.
        on_failure: processes failed batches.
        name: of the threads.
    """
    if is_async(handler):
        asynchronous = cast(Callable[[list[Message]], Awaitable[object]], handler)
        return _Tasks(asynchronous, count, dispatch, on_failure, name)
    return _Threads(handler, count, dispatch, on_failure, name)


class _Threads:
    """A thread per worker. The threads are daemons: a handler that never returns must not keep the process alive."""

    def __init__(self, handler: Handler, count: int, dispatch: Dispatch, on_failure: OnFailure, name: str) -> None:
        self._handler = handler
        self._dispatch = dispatch
        self._on_failure = on_failure
        self._name = name
        self._most = 2 * count
        """Most threads, with those whose calls are overdue: each holds memory until its call returns."""
        self._threads: list[threading.Thread] = []
        for _ in range(count):
            self._start()

    def wake(self) -> None:
        """Do nothing: the threads wait for a batch in `Dispatch.next`."""

    def replace(self, _batch: Batch, /) -> None:
        """Start one more thread, unless there are too many whose calls do not return."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        if len(self._threads) < self._most:
            self._start()

    def close(self) -> None:
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    def _work(self) -> None:
        handler, dispatch = self._handler, self._dispatch
        finished: Batch | None = None
        while (batch := dispatch.next(finished, wait=True)) is not None:
            finished = None
            result: object
            try:
                result = handler(batch.messages.copy())  # an application may take its list apart
            except Exception as problem:
                result = problem
            except BaseException as problem:  # SystemExit, too, is raised again where the application waits
                dispatch.end(problem, batch)
                continue
            if batch.is_overdue:
                return  # another thread has taken this one's place
            if result is None:
                finished = batch
                continue
            self._on_failure(batch, result)
            if batch.is_overdue:
                return


class _Tasks:
    """One task per worker, in an event loop with a thread of its own."""

    def __init__(
        self,
        handler: Callable[[list[Message]], Awaitable[object]],
        count: int,
        dispatch: Dispatch,
        on_failure: OnFailure,
        name: str,
    ) -> None:
        self._handler = handler
        self._count = count
        self._dispatch = dispatch
        self._on_failure = on_failure
        self._loop = asyncio.new_event_loop()
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """Those that take batches."""
        self._replaced: set[asyncio.Task[None]] = set()
        """Those whose calls are overdue, and have not ended yet."""
        self._calls: dict[Batch, asyncio.Task[None]] = {}
        """Batch at work -> the task that handles it."""
        self._is_closed = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._call(self._wake_next)

    def replace(self, batch: Batch, /) -> None:
        """Cancel the call, and start another task."""
        self._call(self._replace, batch)

    def close(self) -> None:
        self._call(self._is_closed.set)
        self._thread.join(JOIN_S)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop was closed: `_run` has reported that
            self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._work_until_closed())
            except (KeyboardInterrupt, SystemExit) as problem:  # a task that the handler started may raise it
                self._dispatch.end(problem)
            except BaseException as problem:
                self._dispatch.end(WakerollError(f"the event loop of the handler ended: {problem!r}"))

    async def _work_until_closed(self) -> None:
        for _ in range(self._count):
            self._start()
        await self._is_closed.wait()
        tasks = self._tasks | self._replaced
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        task = asyncio.create_task(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._replaced.discard(task)
        if task.cancelled() and not self._is_closed.is_set():
            self._dispatch.end(WakerollError(_CANCELLED))

    def _replace(self, batch: Batch) -> None:
        if self._is_closed.is_set():
            return
        task = self._calls.pop(batch, None)
        if task is not None:
            self._tasks.discard(task)
            self._replaced.add(task)
            task.cancel()
        if len(self._tasks) < self._count:
            self._start()

    async def _work(self) -> None:
        dispatch = self._dispatch
        me = cast("asyncio.Task[None]", asyncio.current_task())
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
            self._calls[batch] = me
            result: object
            try:
                result = await self._handler(batch.messages.copy())
            except Exception as problem:
                result = problem
            except asyncio.CancelledError as problem:
                if me.cancelling() and not batch.is_overdue:
                    dispatch.end(WakerollError(_CANCELLED), batch)
                    raise
                result = problem  # of another task, for which the handler waited
            except BaseException as problem:
                dispatch.end(problem, batch)
                continue
            finally:
                self._calls.pop(batch, None)
            if batch.is_overdue:
                self._tasks.discard(me)
                return  # another task takes this one's place
            if result is None:
                finished = batch
            else:
                self._on_failure(batch, result)

    def _wake_next(self) -> None:
        if self._idle and self._dispatch.is_ready:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
