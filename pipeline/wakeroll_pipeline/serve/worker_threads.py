"""Threads for work that would block the event loop: queries, replays and predictions."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from wakeroll_pipeline.serve.no_answer import NoAnswer

WORKERS = 2
MOST_WAITING = 32
"""Requests whose work waits or runs; more are refused, so that an impatient reader does not stop all others."""

_Answer = TypeVar("_Answer")


class WorkerThreads:
    """A few threads, and a bounded queue of work for them. One event loop may use them."""

    def __init__(self) -> None:
        """Prepare; threads are started when there is work."""
        self._threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="page-worker")
        self._waiting = 0

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Do some work in a thread; if the caller is cancelled before the work begins, it is not done.

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
