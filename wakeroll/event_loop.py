"""Calls between an event loop and other threads; they end even if the loop is closed meanwhile."""

import asyncio
import inspect
import logging
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from wakeroll.call_thread import answer
from wakeroll.errors import WakerollError
from wakeroll.flag import Flag

log = logging.getLogger("wakeroll")

LOOK_S = 0.5
"""Interval in which a thread checks whether an event loop was closed (s); there is no notification of that."""

_Result = TypeVar("_Result")
_Owner = TypeVar("_Owner")


class LoopClosed(BaseException):
    """A call was to be made in an event loop that was closed.

    It is not an `Exception`, because the call has not failed: its messages have had no attempt.
    """


def in_loop(made: "Future[_Result]") -> "asyncio.Future[_Result]":
    """Return a future of the running event loop with the result of a call that a thread makes.

    Unlike the future of `asyncio.wrap_future`, it may be cancelled without an effect on the call; and nothing is logged
    if no task waits for its exception any more, or if the loop is closed before the call ends.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[_Result] = loop.create_future()

    def settle() -> None:
        if waiting.done():
            return
        if (problem := made.exception()) is None:
            waiting.set_result(made.result())
        else:
            waiting.set_exception(problem)
            waiting.exception()  # the task that waits may be cancelled before it reads it; asyncio would report that

    def tell(_: "Future[_Result]") -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle)

    made.add_done_callback(tell)
    return waiting


class LoopCalls:
    """Callbacks of an application that a thread calls in an event loop; the thread waits for each.

    While it waits, the thread makes the calls that the callback submits, because only this thread may make them.
    """

    def __init__(self) -> None:
        """Begin without calls."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_work: Future[Any] | None = None
        """The callback that the thread waits for, or the last one."""
        self._waits = False
        """Whether the thread waits for a callback, or is about to wait."""
        self._submitted: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        """Calls for the thread; None when the callback has ended."""

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Call callbacks in this event loop from now on."""
        self._loop = loop

    @property
    def is_in_callback(self) -> bool:
        """Whether the current task is a callback that the thread waits for, or was started by it."""
        return self._waits and self.is_of_callback

    @property
    def is_of_callback(self) -> bool:
        """Whether this is a callback that `make` or `make_here` calls, or was started by one, even if it has ended."""
        return _callback.get() is self

    def make_here(self, call: Callable[[], _Result]) -> _Result:
        """In the thread: call a callback that is an ordinary function."""
        token = _callback.set(self)
        try:
            return call()
        finally:
            _callback.reset(token)

    def make(self, call: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result | None:
        """In the thread: call a coroutine function in the event loop, and wait for its result.

        Nothing is called if the loop is closed.

        Raises:
            LoopClosed: the loop was closed before the call has ended.
            BaseException: the exception of the call.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            log.warning("a callback of an AsyncConsumer is not called, because its event loop is closed")
            return None
        token = _callback.set(self)
        coroutine = call()
        self._waits = True  # before it begins
        try:
            at_work = self._at_work = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # it was closed since
            coroutine.close()
            self._waits = False
            return None
        finally:
            _callback.reset(token)
        at_work.add_done_callback(self._ended)
        try:
            if loop.is_closed():
                self.fail()  # what closed it may not have seen this call
            while (submitted := self._submitted.get()) is not None:
                submitted()
            return cast(_Result, at_work.result())
        except CancelledError:
            raise WakerollError("the task of a callback was cancelled") from None
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # or Python reports that nobody has awaited it

    def submit(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """In the event loop: let the thread make a call while it waits for a callback; return its future result."""
        future: Future[_Result] = Future()
        self._submitted.put(lambda: answer(call, future))
        return future

    def fail(self) -> None:
        """End the wait for a callback: its loop is closed. Any thread may call it."""
        if (at_work := self._at_work) is not None:
            with suppress(InvalidStateError):  # it has ended
                at_work.set_exception(LoopClosed())

    def _ended(self, _: "Future[Any]") -> None:
        """End the wait of the thread; in the event loop, like `submit`, so that no call is submitted later."""
        self._waits = False
        self._submitted.put(None)


_callback: ContextVar[LoopCalls | None] = ContextVar("wakeroll_callback", default=None)
"""The `LoopCalls` that called the current task's callback; None if the task is not part of a callback."""


class LoopWatch(Generic[_Owner]):
    """A thread that makes a call when an event loop is closed, or an object that uses the loop is garbage-collected."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: _Owner, call: Callable[[_Owner | None], object], name: str
    ) -> None:
        """Start the thread; `call` receives the owner, or None after garbage collection, and must not refer to it."""
        self._ended = ended = Flag()
        alive = weakref.ref(owner)

        def watch() -> None:
            while not (ended.wait(LOOK_S) or loop.is_closed() or alive() is None):
                pass
            if not ended.is_set():
                call(alive())

        threading.Thread(target=watch, name=name, daemon=True).start()

    def end(self) -> None:
        """Let the thread end without the call."""
        self._ended.set()
