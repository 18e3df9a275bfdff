"""A thread that makes calls one by one, for other threads that must neither wait nor be interrupted in a call."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

_Result = TypeVar("_Result")

LOOK_S = 0.5
"""Interval in which a caller that waits for a result checks whether the thread has ended (s)."""

# A `SimpleQueue` is the only thing here that two threads share: its methods are written in C, so an exception of a
# signal handler comes before or after them. A lock of Python's, such as that of a `Future`, would stay locked.


class CallThread:
    """A thread that starts with the first call and makes all calls until `end`.

    Unlike the threads of a `ThreadPoolExecutor`, it is a daemon: a call that waits does not keep the interpreter alive.

    After `end`, `do` drops a call, and `submit` returns a failed future. `ask` waits until the thread has ended, and
    then makes the call in its caller's thread, because the caller needs the result.
    """

    def __init__(self, name: str) -> None:
        """Prepare; `name` is the name of the thread."""
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._name = name
        self._is_ended = False
        self._thread = threading.Thread(target=_make_all, args=(self._calls,), name=name, daemon=True)

    def do(self, call: Callable[[], object]) -> None:
        """Make this call after the former ones, without a result; it must not raise an error."""
        if not self._is_ended:
            self._put(call)

    def ask(self, call: Callable[[], _Result]) -> _Result:
        """Make this call after the former ones; return its result, or raise its exception.

        The call is made as a whole, or not at all, also if an exception of a signal handler ends the wait for it.

        Raises:
            BaseException: what the call raised.
        """
        answer: SimpleQueue[tuple[_Result | None, BaseException | None]] = SimpleQueue()
        self._put(lambda: answer.put(_made(call)))
        while True:
            try:
                result, problem = answer.get(timeout=LOOK_S)
            except Empty:
                if not self._thread.is_alive():
                    _make_rest(self._calls)  # those that came after `end`
                continue
            if problem is not None:
                raise problem
            return cast(_Result, result)

    def submit(self, call: Callable[[], _Result]) -> "Future[_Result]":
        """Make this call after the former ones; return its future result, or a RuntimeError after `end`."""
        future: Future[_Result] = Future()
        if self._is_ended:
            future.set_exception(RuntimeError(f"thread {self._name} has ended; it makes no call any more"))
        else:
            self._put(lambda: answer(call, future))
        return future

    def end(self) -> None:
        """Let the thread end after the calls so far; a second call does nothing."""
        self._is_ended = True
        self._calls.put(None)

    def join(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the end, after `end`."""
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _put(self, call: Callable[[], object]) -> None:
        self._calls.put(call)
        if self._thread.ident is None:
            self._thread.start()


def _make_all(calls: "SimpleQueue[Callable[[], object] | None]") -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it must not keep a consumer alive that nobody uses any more


def _make_rest(calls: "SimpleQueue[Callable[[], object] | None]") -> None:
    with suppress(Empty):  # another thread may make some of them
        while True:
            if (call := calls.get(timeout=0)) is not None:
                call()


def _made(call: Callable[[], _Result]) -> tuple[_Result | None, BaseException | None]:
    try:
        return call(), None
    except BaseException as problem:  # the thread that waits raises it
        return None, problem


def answer(call: Callable[[], _Result], future: "Future[_Result]") -> None:
    """Make a call, and set its result or exception in a future."""
    if not future.set_running_or_notify_cancel():
        return
    result, problem = _made(call)
    if problem is None:
        future.set_result(cast(_Result, result))
    else:
        future.set_exception(problem)
