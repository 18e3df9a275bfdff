"""Threads beside the event loop, with bounded queues.

Work that waits for others (the coordinator, an identity provider) must not delay the end of the process, so its threads
are daemons. Work on the tables ends with the process: DuckDB reports leaks if a thread that has used it is still alive.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from wakeroll_pipeline.serve.access.refusal import NoAnswer, Refused

WORKERS = 2
MOST_WAITING = 32
"""Maximum number of requests whose work waits or runs; more are refused, so that one reader with many requests does not
block all others."""

_Answer = TypeVar("_Answer")


class DaemonThreads:
    """Runs functions in daemon threads; those of Python's own executors would be joined at the exit."""

    def __init__(self, name: str, at_once: int, most: int) -> None:
        """Prepare.

        Args:
            name: name of the threads.
            at_once: maximum number of functions that run at the same time.
            most: maximum number of functions that run or wait; more are refused.
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


class WorkerThreads:
    """A few threads, and a bounded queue of work for them. One event loop may use them."""

    def __init__(self) -> None:
        """Prepare; threads are started when they are needed."""
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="page-worker")
        self._waiting = 0

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Call a function in a thread; if the caller is cancelled before the call begins, it is not made.

        Raises:
            NoAnswer: too many requests wait already.
        """
        if self._waiting >= MOST_WAITING:
            raise NoAnswer(f"{MOST_WAITING} requests are being worked on; try again in some seconds", 503)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """Begin no further work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
