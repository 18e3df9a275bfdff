"""Supervision of running queries: detect that one has ended, and stop one between two batches."""

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
"""How often to check whether a query still runs (s)."""
_LAST_BATCH_S = 30.0
"""Longest wait for the last batch, which takes seconds (s)."""


class JobFailed(WakerollError):
    """A query ended by itself; the message names the query and the reason."""


def on_signals(do: Callable[[], object]) -> None:
    """Call `do` on SIGTERM and SIGINT."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        do()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def raise_if_dead(query: StreamingQuery) -> None:
    """Raise `JobFailed` if the query has ended."""
    if query.isActive:
        return
    error = query.exception()
    if error is None:
        raise JobFailed(f"{query.name} ended: it was stopped")
    told, cause = _first_sentence(error), _root_cause(query)
    raise JobFailed(f"{query.name} ended: {told}" + (f"; its cause: {cause}" if cause and cause not in told else ""))


def stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query at the end of its batch, so that no work is repeated after the next start.

    While the query catches up, its next batch starts at once; then that batch is stopped when it has hardly begun.
    """
    last = _batch_of(query)
    wait_until(lambda: not query.isActive or not query.status["isTriggerActive"] or _batch_of(query) != last)
    query.stop()


def _batch_of(query: StreamingQuery) -> int:
    """Return the number of the last completed batch, from 0; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


def wait_until(true: Callable[[], bool]) -> None:
    """Wait until the condition is true, but at most for the duration of a last batch."""
    deadline = time.monotonic() + _LAST_BATCH_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def _first_sentence(error: StreamingQueryException) -> str:
    """Return the line of a Spark error that names the cause; write the whole error to the log."""
    log.error("%s", error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "Exception" in line]
    return (told or lines or ["unknown"])[-1][:500]


def _root_cause(query: StreamingQuery) -> str:
    """Return the message of the innermost exception of a query that failed, such as that the disk is full."""
    error = query._jsq.exception().get()
    while (cause := error.getCause()) is not None:
        error = cause
    return str(error.getMessage() or "").partition("\n")[0][:500]
