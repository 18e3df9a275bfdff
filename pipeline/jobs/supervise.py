"""What whoever runs queries does with them: notice that one has died, stop it between two batches."""

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.errors import WakerollError

log = logging.getLogger("wakeroll.run")

POLL_S = 0.5
"""How often to look whether a query lives."""
_LAST_BATCH_S = 30.0
"""A last batch takes seconds; whoever asked to stop is not kept waiting for longer."""


class JobFailed(WakerollError):
    """A query ended by itself; the message says which and why."""


def on_signals(do: Callable[[], object]) -> None:
    """Do this when somebody asks this process to end."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        do()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def raise_if_dead(query: StreamingQuery) -> None:
    """Raise `JobFailed` if a query has ended."""
    if query.isActive:
        return
    error = query.exception()
    raise JobFailed(f"{query.name} ended: {_first_sentence(error) if error else 'it was stopped'}")


def stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query when its batch is done, so that nothing is repeated at the next start.

    While it is catching up, the next batch begins at once; then that one has come to nothing yet.
    """
    last = _batch_of(query)
    wait_until(lambda: not query.isActive or not query.status["isTriggerActive"] or _batch_of(query) != last)
    query.stop()


def _batch_of(query: StreamingQuery) -> int:
    """Return the number of the last batch that was done, from 0; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_until(true: Callable[[], bool]) -> None:
    """Wait for something, but not for longer than a last batch may take."""
    deadline = time.monotonic() + _LAST_BATCH_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def _first_sentence(error: StreamingQueryException) -> str:
    """Return the line of an engine's report that says what happened; the rest is in the log."""
    log.error("%s", error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "Exception" in line]
    return (told or lines or ["unknown"])[-1][:500]
