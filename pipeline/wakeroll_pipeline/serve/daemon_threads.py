"""Threads for work that waits: a few run at the same time, and none of them delays the end of the process."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from wakeroll_pipeline.serve.access.refusal import Refused

_Answer = TypeVar("_Answer")


class DaemonThreads:
    """Runs functions. Python joins the threads of its own executors at the exit, so these are not used."""

    def __init__(self, name: str, at_once: int, most: int) -> None:
        """Prepare.

        Args:
            name: name of the threads.
            at_once: functions that run at the same time.
            most: functions that run or wait; more are refused.
        """
        self._name = name
        self._most = most
        self._turn = threading.Semaphore(at_once)
        self._lock = threading.Lock()
        self._waiting = 0

    def submit(self, work: Callable[[], _Answer]) -> Future[_Answer]:
        """Run a function in a thread; return its future result.

        Raises:
            Refused: too many functions run or wait.
        """
        with self._lock:
            if self._waiting >= self._most:
                raise Refused(f"{self._most} requests of this kind are waiting already; try again in some seconds", 503)
            self._waiting += 1
        future: Future[_Answer] = Future()
        threading.Thread(target=self._run, args=(work, future), name=self._name, daemon=True).start()
        return future

    def _run(self, work: Callable[[], _Answer], future: Future[_Answer]) -> None:
        try:
            with self._turn:
                answer = work()
        except BaseException as problem:  # the future raises it
            self._leave()
            future.set_exception(problem)
        else:
            self._leave()
            future.set_result(answer)

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
