"""Calls between an event loop and the threads beside it, which end also if the loop is closed meanwhile."""

import asyncio
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from wakeroll.flag import Flag

LOOK_S = 0.5
"""How often a thread looks whether an event loop was closed (s): nothing else tells it."""

_Result = TypeVar("_Result")
_Owner = TypeVar("_Owner")


class LoopClosed(BaseException):
    """The event loop was closed in which a call was to be made.

    It is no `Exception`: the call has not failed, and its messages have had no attempt.
    """


def in_loop(made: "Future[_Result]") -> "asyncio.Future[_Result]":
    """Return a future of the running event loop with the result of a call that a thread makes.

    Unlike that of `asyncio.wrap_future`, it may be cancelled without an effect on the call; nothing is reported if
    nobody waits for an exception any more, or if the loop is closed before the call ends.
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
    """Calls of coroutines in an event loop, made from another one."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._at_work: dict[Future[Any], Coroutine[Any, Any, Any]] = {}

    async def make(
        self, loop: asyncio.AbstractEventLoop, function: Callable[[Any], Coroutine[Any, Any, _Result]], argument: Any
    ) -> _Result:
        """Call a coroutine function in an event loop, and wait for its result.

        Raises:
            LoopClosed: that event loop is closed, or will be before the call ends.
            BaseException: what the call raised.
        """
        if loop.is_closed():
            raise LoopClosed
        coroutine = function(argument)
        try:
            call = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # it was closed since
            coroutine.close()
            raise LoopClosed from None
        self._at_work[call] = coroutine
        try:
            if loop.is_closed():
                self.fail()  # who closed it may not have seen this call
            return await asyncio.wrap_future(call)
        finally:
            del self._at_work[call]

    def fail(self) -> None:
        """End the waits for all calls at work: their loop is closed. Any thread may call it."""
        for call, coroutine in list(self._at_work.items()):
            with suppress(InvalidStateError):  # it has ended
                call.set_exception(LoopClosed())
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # or Python reports that nobody has awaited it


class LoopWatch(Generic[_Owner]):
    """A thread that makes a call when an event loop is closed, or when an object that belongs to it is garbage."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, owner: _Owner, call: Callable[[_Owner | None], object], name: str
    ) -> None:
        """Start the thread; `call` receives the owner, or None if it is garbage, and must not refer to it."""
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
