"""The workers that call the handler: threads, or tasks of an event loop if the handler is asynchronous."""

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol, cast

from wakeroll.callbacks import is_async_function
from wakeroll.errors import WakerollError
from wakeroll.push.dispatch import Dispatch
from wakeroll.push.outcomes import AsyncHandler, Handler
from wakeroll.push.queue_work import Batch
from wakeroll.thread_stacks import stack_of_task

OnFailure = Callable[[Batch, object], None]
"""Called with a batch whose call did not process all messages, and with the result or exception of the call."""

TURN_S = 0.001
"""Time for which calls may follow each other in the application's event loop before other tasks run (s)."""
JOIN_S = 1.0
"""Maximum wait for the threads that have no more work (s)."""

_CANCELLED = "a task of run() was cancelled: the handler, or a library that it uses, must cancel only tasks of its own"


class Workers(Protocol):
    """Call the handler, a bounded number of times at once."""

    def start(self) -> None:
        """Start the threads."""

    def wake(self) -> None:
        """Note that batches were added. Any thread may call it."""

    def replace(self, batch: Batch, /) -> None:
        """Let another worker take the place of the one whose call is overdue."""

    def is_short(self) -> bool:
        """Return whether a worker could not be replaced, and `fill` may replace it now."""

    def fill(self) -> None:
        """Replace the workers that could not be replaced before."""

    def has_idle(self) -> bool:
        """Return whether a worker waits for a batch. Any thread may call it."""

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        """Run a coroutine in the event loop of the handler, and do not wait for it. Any thread may call it."""

    def stack_of(self, batch: Batch, /) -> str:
        """Return the stack of the call of a batch; empty if it is the stack of its thread."""

    def lose_calls(self, problem: BaseException) -> None:
        """End the running calls, whose event loop is closed: they never return. Any thread may call it."""

    def end(self) -> None:
        """Let the workers end, after `Dispatch.close`; a thread whose handler does not return ends when it does."""

    def join(self) -> None:
        """Wait for the threads that have no more work, at most `JOIN_S` seconds."""


def workers_for(
    handler: Handler,
    count: int,
    dispatch: Dispatch,
    on_failure: OnFailure,
    name: str,
    loop: asyncio.AbstractEventLoop | None = None,
) -> Workers:
    """Return workers of the kind that the handler needs; they are not started.

    Args:
        handler: a function, or an ``async`` function.
        count: how many calls of the handler run at once.
        dispatch: has the batches.
        on_failure: processes failed batches.
        name: of the threads.
        loop: event loop of the application, in which an ``async`` handler is called; None: one with a thread of its
            own.
    """
    if is_async_function(handler):
        return _Tasks(cast(AsyncHandler, handler), count, dispatch, on_failure, name, loop)
    return _Threads(handler, count, dispatch, on_failure, name)


class _Threads:
    """A thread per worker. The threads are daemons: a handler that never returns must not keep the process alive."""

    def __init__(self, handler: Handler, count: int, dispatch: Dispatch, on_failure: OnFailure, name: str) -> None:
        self._handler = handler
        self._dispatch = dispatch
        self._on_failure = on_failure
        self._name = name
        self._most = 2 * count
        """Maximum number of threads, with those whose calls are overdue: each needs memory until its call returns."""
        self._count = count
        self._threads: list[threading.Thread] = []
        self._missing = 0
        """Number of threads whose calls are overdue, and which no other thread has replaced yet."""

    def start(self) -> None:
        for _ in range(self._count):
            self._start()

    def wake(self) -> None:
        """Do nothing: the threads wait for a batch in `Dispatch.next`."""

    def replace(self, _batch: Batch, /) -> None:
        self._missing += 1
        self.fill()

    def is_short(self) -> bool:
        return self._missing > 0 and sum(thread.is_alive() for thread in self._threads) < self._most

    def fill(self) -> None:
        """Start a thread for each missing one, unless there are too many whose calls do not return."""
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while self._missing and len(self._threads) < self._most:
            self._missing -= 1
            self._start()

    def has_idle(self) -> bool:
        return self._dispatch.has_idle

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        coroutine.close()
        assert is_async_function(self._handler), "only an async handler has an event loop"

    def stack_of(self, _batch: Batch, /) -> str:
        return ""  # that of its thread

    def lose_calls(self, _problem: BaseException) -> None:
        """Do nothing: threads need no event loop."""

    def end(self) -> None:
        """Do nothing: the threads end after `Dispatch.close`."""

    def join(self) -> None:
        deadline = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(deadline - time.monotonic(), 0.0))

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads) + 1}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    def _work(self) -> None:
        handler, dispatch = self._handler, self._dispatch
        batch: Batch | None = None
        finished: Batch | None = None
        try:
            while (batch := dispatch.next(finished, wait=True)) is not None:
                finished = None
                result: object
                try:
                    result = handler(batch.messages.copy())  # an application may take its list apart
                except Exception as problem:
                    result = problem
                if result is None and not batch.is_overdue:
                    finished = batch
                    continue
                dispatch.returned(batch)
                if not batch.is_overdue:
                    self._on_failure(batch, result)
                if batch.is_overdue:
                    return  # another thread takes this one's place
        except BaseException as problem:
            # SystemExit, too, is raised again where the application waits. The code of a result or of an exception,
            # such as its __str__, may raise anything.
            dispatch.end(problem, batch)


class _Tasks:
    """One task per worker, in the application's event loop, or in one with a thread of its own."""

    def __init__(
        self,
        handler: AsyncHandler,
        count: int,
        dispatch: Dispatch,
        on_failure: OnFailure,
        name: str,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._handler = handler
        self._count = count
        self._dispatch = dispatch
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        """None before `start`."""
        self._application_loop = loop
        self._main: asyncio.Task[None] | None = None
        """The task that starts and ends all others in the application's loop."""
        self._has_ended = threading.Event()
        """Whether that task has ended."""
        self._idle: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        """Tasks that take batches."""
        self._replaced: set[asyncio.Task[None]] = set()
        """Tasks whose calls are overdue, and which have not ended yet."""
        self._spawned: set[asyncio.Task[None]] = set()
        """Tasks that store failed messages."""
        self._calls: dict[Batch, asyncio.Task[None]] = {}
        """Running batch -> the task that handles it."""
        self._is_closed = asyncio.Event()
        self._is_ended = False
        """Whether `end` was called: after an interrupt of `run`, perhaps before another thread calls `start`."""
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._application_loop is not None:
            self._loop = self._application_loop
            self._call(self._begin)
            return
        self._loop = loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=lambda: self._run(loop), name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._call(self._wake_next)

    def replace(self, batch: Batch, /) -> None:
        """Cancel the call, and start another task."""
        self._call(self._replace, batch)

    def is_short(self) -> bool:
        return False

    def fill(self) -> None:
        """Do nothing: tasks are always replaced."""

    def has_idle(self) -> bool:
        return bool(self._idle)

    def spawn(self, coroutine: Coroutine[Any, Any, None], /) -> None:
        assert self._loop is not None, "calls have failed"
        try:
            self._loop.call_soon_threadsafe(self._spawn, coroutine)
        except RuntimeError:  # the loop was closed: `_run` or `lose_calls` has reported that
            coroutine.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._spawned.add(task)  # an event loop refers to its tasks weakly
        task.add_done_callback(self._spawned.discard)

    def stack_of(self, batch: Batch, /) -> str:
        """Return the place where the task of a batch waits; empty if it runs, or another task has taken its place."""
        task = self._calls.get(batch)
        return "" if task is None else stack_of_task(task)

    def end(self) -> None:
        self._is_ended = True
        self._call(self._is_closed.set)

    def lose_calls(self, problem: BaseException) -> None:
        for batch in list(self._calls):
            self._dispatch.end(problem, batch)
        for task in [*self._tasks, *self._replaced, *self._spawned, *([] if self._main is None else [self._main])]:
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # or Python reports that nobody has awaited it
        self._has_ended.set()

    def join(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(JOIN_S)
        if self._main is not None:
            self._has_ended.wait(JOIN_S)

    def _begin(self) -> None:
        """In the application's loop: start the tasks."""
        self._main = asyncio.create_task(self._work_until_closed())
        self._main.add_done_callback(self._main_ended)

    def _main_ended(self, task: "asyncio.Task[None]") -> None:
        self._has_ended.set()
        if task.cancelled():
            self._dispatch.end(WakerollError(_CANCELLED))
        elif (problem := task.exception()) is not None:
            self._dispatch.end(problem)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed: `_run` has reported that
                self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                runner.run(self._work_until_closed())
            except (KeyboardInterrupt, SystemExit) as problem:  # a task that the handler started may raise it
                self._dispatch.end(problem)
            except BaseException as problem:
                self._dispatch.end(WakerollError(f"the event loop of the handler ended: {problem!r}"))

    async def _work_until_closed(self) -> None:
        if self._is_ended:
            return
        for _ in range(self._count):
            self._start()
        await self._is_closed.wait()
        tasks = self._tasks | self._replaced | self._spawned
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
        if self._is_closed.is_set():
            return
        if task.cancelled():
            self._dispatch.end(WakerollError(_CANCELLED))
        elif (problem := task.exception()) is not None:
            self._dispatch.end(problem)

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
        loop = asyncio.get_running_loop()
        is_guest, yielded_s = self._application_loop is not None, loop.time()
        finished: Batch | None = None
        while True:
            if is_guest and loop.time() - yielded_s > TURN_S:
                await asyncio.sleep(0)  # a handler that does not wait must not keep other tasks from running
                yielded_s = loop.time()
            batch = dispatch.next(finished, wait=False)
            finished = None
            if batch is None:
                idle = loop.create_future()
                self._idle.append(idle)
                await idle
                yielded_s = loop.time()
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
            except GeneratorExit:  # the task is garbage, because its event loop was closed
                raise
            except BaseException as problem:
                dispatch.end(problem, batch)
                continue
            finally:
                self._calls.pop(batch, None)
            if batch.is_overdue:
                dispatch.returned(batch)
                self._tasks.discard(me)
                return  # another task takes this one's place
            if result is None:
                finished = batch
                continue
            dispatch.returned(batch)
            try:
                self._on_failure(batch, result)
            except BaseException as problem:  # of the code of a result or of an exception, such as its __str__
                dispatch.end(problem, batch)

    def _wake_next(self) -> None:
        if self._idle and self._dispatch.is_ready:
            idle = self._idle.pop()
            if not idle.done():
                idle.set_result(None)
