"""A thread that makes calls one after the other, for an event loop that must not wait."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

_Result = TypeVar("_Result")


class CallThread:
    """A thread of its own, from the first call until `end`.

    Unlike the threads of a `ThreadPoolExecutor`, it is a daemon: a call that waits does not keep the interpreter alive.
    """

    def __init__(self, name: str) -> None:
        """Prepare; `name` is the thread's."""
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=_make_all, args=(self._calls,), name=name, daemon=True)

    def submit(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """Make this call after the former ones; return its future result.

        Raises:
            RuntimeError: the interpreter ends, and the thread was not started yet.
        """
        future: Future[_Result] = Future()
        self._calls.put(lambda: _make(call, future))
        if self._thread.ident is None:
            self._thread.start()
        return future

    def end(self) -> None:
        """Let the thread end after the calls so far."""
        self._calls.put(None)


def _make_all(calls: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it must not keep a consumer alive that nobody uses any more


def _make(call: Callable[[], _Result], future: "Future[_Result]") -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as problem:  # the task that waits raises it
        future.set_exception(problem)
    else:
        future.set_result(result)
