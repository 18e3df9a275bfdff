"""A member of a group in a test: a real consumer, and a thread in which it runs the application's handler."""

import threading
from collections.abc import Callable
from typing import Any, cast

from confluent_kafka import Message

from wakeroll.callbacks import is_async_function
from wakeroll.consumer import Consumer
from wakeroll.push.outcomes import AsyncHandler, Handler, Result
from wakeroll_model.queue import Queue

STOP_S = 10.0
"""How long `stop` waits for the handler (s)."""

OnCall = Callable[["Member", list[Message], float, object], None]
"""Called when a call has ended: the member, the messages, when the call began (s), and its result or exception."""


class Member:
    """A member of a group that runs a handler in a thread; `MemoryBroker.join` creates it."""

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler,
        now_s: Callable[[], float],
        on_call: OnCall,
        cut_off: Callable[["Member"], None],
        on_end: Callable[[], bool],
        *,
        commits: bool,
        **run_arguments: Any,
    ) -> None:
        """Start the thread.

        Args:
            consumer: a member of the group.
            handler: the application's handler.
            now_s: returns the broker's time (s).
            on_call: called when a call of the handler has ended.
            cut_off: called by `crash`, to disconnect the consumer.
            on_end: called by the thread when it ends; returns whether `Consumer.run` had begun to consume.
            commits: whether the consumer commits at an interval.
            run_arguments: arguments of `Consumer.run`.
        """
        self.consumer = consumer
        """The real consumer."""
        self.problem: BaseException | None = None
        """The error that ended `Consumer.run`; None if there is none."""
        self.is_crashed = False
        """Whether `crash` was called."""
        self.has_begun = True
        """Whether `Consumer.run` accepted its arguments."""
        self.has_ended = False
        """Whether `Consumer.run` has ended."""
        self.commits = commits
        """Whether the consumer commits at an interval."""
        self._is_raised = False
        """Whether `problem` was raised to the test."""
        self._now_s = now_s
        self._on_call = on_call
        self._cut_off = cut_off
        self._on_end = on_end
        self._calls = 0
        self._lock = threading.Lock()
        self._handler = self._watched(handler)
        self._run_arguments = run_arguments
        self._thread = threading.Thread(target=self._run, name=f"member-{consumer.client_id}", daemon=True)
        self._thread.start()

    @property
    def client_id(self) -> str:
        """The member's name in the group."""
        return self.consumer.client_id

    @property
    def group_id(self) -> str:
        """The group."""
        return self.consumer.group_id

    @property
    def assignment(self) -> list[Queue]:
        """The queues that the member reads now, with those of the retry topic; none after its end."""
        return [] if self.has_ended else self.consumer.assignment(with_retries=True)

    @property
    def calls(self) -> int:
        """Number of calls of the handler that have not returned."""
        return self._calls

    @property
    def is_running(self) -> bool:
        """Whether the member is in its group and runs the handler."""
        return not self.has_ended and not self.is_crashed

    @property
    def thread_id(self) -> int:
        """Identifier of the thread of `Consumer.run`."""
        assert self._thread.ident is not None, "the thread was started when the member was created"
        return self._thread.ident

    def stop(self, timeout: float = STOP_S) -> None:
        """Wait for running calls, commit, and leave the group.

        Raises:
            TimeoutError: a call of the handler did not return within `timeout` seconds; the member is crashed instead.
            BaseException: the exception that ended `Consumer.run`, such as one of the handler with
                ``on_error="raise"``.
        """
        if self.is_crashed:
            return
        self.consumer._end_soon()
        self._thread.join(timeout)
        if self._thread.is_alive():
            calls = self._calls
            self.crash()
            raise TimeoutError(f"{self.client_id}: {calls} calls of the handler did not return within {timeout:g} s")
        self.consumer.close()
        self.raise_problem()

    def crash(self) -> None:
        """End like a killed process: nothing more is committed, and the session ends.

        Running calls of the handler go on, because a thread cannot be killed, but their results are lost.
        """
        if self.is_crashed:
            return
        self.is_crashed = True
        self._cut_off(self)
        self.consumer._end_soon()

    def raise_problem(self) -> None:
        """Raise the exception that ended `Consumer.run`, once.

        Raises:
            BaseException: an exception of a callback, the handler or the consumer.
        """
        if self.problem is not None and not self._is_raised and not self.is_crashed:
            self._is_raised = True
            raise self.problem

    def _run(self) -> None:
        try:
            self.consumer.run(self._handler, **self._run_arguments)
        except BaseException as problem:
            self.problem = problem
        finally:
            self.has_begun = self._on_end()
            self.has_ended = True
            if self.is_crashed or self.problem is not None:  # as at the end of `with Consumer(...)`
                self.consumer.close(timeout=0.1 if self.is_crashed else 5.0)

    def _watched(self, handler: Handler) -> Handler:
        """Return a handler that also notes each call."""
        if is_async_function(handler):
            asynchronous = cast(AsyncHandler, handler)

            async def call_async(messages: list[Message]) -> Result:
                began_s = self._begin()
                try:
                    result = await asynchronous(messages)
                except BaseException as problem:
                    self._end(messages, began_s, problem)
                    raise
                self._end(messages, began_s, result)
                return result

            return call_async

        function = cast(Callable[[list[Message]], Result], handler)

        def call(messages: list[Message]) -> Result:
            began_s = self._begin()
            try:
                result = function(messages)
            except BaseException as problem:
                self._end(messages, began_s, problem)
                raise
            self._end(messages, began_s, result)
            return result

        return call

    def _begin(self) -> float:
        if self.is_crashed:
            raise Crashed(self.client_id)
        with self._lock:
            self._calls += 1
        return self._now_s()

    def _end(self, messages: list[Message], began_s: float, result: object) -> None:
        with self._lock:
            self._calls -= 1
        if not self.is_crashed:
            self._on_call(self, messages, began_s, result)


class Crashed(BaseException):
    """The member has crashed; this exception ends the threads that call its handler."""
