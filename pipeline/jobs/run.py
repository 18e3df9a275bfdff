"""run: both queries in one session, until somebody asks it to stop."""

import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pipeline.checkpoints import has_batches
from pipeline.cluster import Cluster
from pipeline.jobs import coordinate, record
from pipeline.lock import only_one
from pipeline.session import start_session
from pipeline.settings import Settings
from pipeline.snapshots import refuse_to_forget, take_snapshots
from pipeline.status import QueryStatus, Status, now_ms, write_status
from pipeline.topics import ensure_topics
from wakeroll.connection import Connection
from wakeroll.errors import WakerollError

log = logging.getLogger("wakeroll.run")

JOBS: Mapping[str, Callable[[SparkSession, Settings], StreamingQuery]] = {
    coordinate.NAME: coordinate.start,
    record.NAME: record.start,
}
_POLL_S = 0.5
_FIRST_SNAPSHOT_MS = 60_000
"""A new deployment has something to be restored from soon."""
_LAST_BATCH_S = 30.0
"""A last batch takes seconds; whoever asked to stop is not kept waiting for longer."""


class JobFailed(WakerollError):
    """A query ended by itself; the message says which and why."""


def run(settings: Settings, jobs: Sequence[str] = tuple(JOBS)) -> None:
    """Run the jobs until SIGTERM or SIGINT; the batch at work is finished first.

    Raises:
        JobFailed: a query ended by itself.
        InvalidTopics: the control topics are not as the checkpoint needs them.
    """
    stop = threading.Event()
    _on_signals(lambda: os._exit(130))  # nothing has begun that would have to be ended
    ensure_topics(
        settings.connection,
        partitions=settings.partitions,
        inbox_partitions=settings.inbox_partitions,
        replication=settings.replication,
    )
    with ExitStack() as stack:
        if coordinate.NAME in jobs:
            stack.enter_context(only_one(settings.checkpoint("coordinate.lock"), "decides from this checkpoint"))
            refuse_to_forget(settings)
        if record.NAME in jobs:
            stack.enter_context(only_one(settings.warehouse / "record.lock", "writes these tables"))
        _run(settings, jobs, stop)


def _run(settings: Settings, jobs: Sequence[str], stop: threading.Event) -> None:
    spark = start_session(settings, "wakeroll")
    started_ms = now_ms()
    queries = [JOBS[name](spark, settings) for name in jobs]
    _on_signals(stop.set)
    snapshot_due_ms = started_ms + min(settings.snapshot_interval_ms, _FIRST_SNAPSHOT_MS)
    log.info("running %s on %s", ", ".join(jobs), settings.bootstrap)
    try:
        while not stop.wait(_POLL_S):
            for query in queries:
                _raise_if_dead(query)
            status = {str(query.name): _status_of(query) for query in queries}
            write_status(Path(settings.home), Status(os.getpid(), settings.bootstrap, started_ms, now_ms(), status))
            if record.NAME in jobs and now_ms() >= snapshot_due_ms and has_batches(settings):
                snapshot_due_ms = now_ms() + settings.snapshot_interval_ms
                log.info("snapshots of %d shards", take_snapshots(spark, settings))
        log.info("stopping")
        for query in queries:
            if query.name == record.NAME:
                _await_record(query, settings.connection, settings.partitions)
            _stop_between_batches(query)
    finally:
        spark.stop()


def _on_signals(do: Callable[[], object]) -> None:
    """Do this when somebody asks this process to end."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        do()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)


def _raise_if_dead(query: StreamingQuery) -> None:
    if query.isActive:
        return
    error = query.exception()
    raise JobFailed(f"{query.name} ended: {_first_sentence(error) if error else 'it was stopped'}")


def _first_sentence(error: StreamingQueryException) -> str:
    """Return the line of an engine's report that says what happened; the rest is in the log."""
    log.error("%s", error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if "Error" in line or "Exception" in line]
    return (told or lines or ["unknown"])[-1][:500]


def _await_record(query: StreamingQuery, connection: Connection, partitions: int) -> None:
    """Wait until every decision so far is written down; not for long, if there is no broker any more."""
    topic = connection.topics.decisions
    try:
        ends = Cluster(connection).offsets((topic, partition) for partition in range(partitions))
    except WakerollError as error:
        log.warning("stopping without the last decisions in the tables: %s", error)
        return

    def written() -> bool:
        progress = query.lastProgress
        sources = progress["sources"] if progress else []
        reached = json.loads(sources[0]["endOffset"] or "{}").get(topic, {}) if sources else {}
        return not query.isActive or all(reached.get(str(at), 0) >= end for (_, at), (_, end) in ends.items())

    _wait_until(written)


def _stop_between_batches(query: StreamingQuery) -> None:
    """Stop a query when its batch is done, so that nothing is repeated at the next start."""
    _wait_until(lambda: not query.isActive or not query.status["isTriggerActive"])
    query.stop()


def _wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _LAST_BATCH_S
    while not true() and time.monotonic() < deadline:
        time.sleep(0.05)


def _status_of(query: StreamingQuery) -> QueryStatus:
    progress = query.lastProgress
    if progress is None:
        return QueryStatus(-1, 0, 0)
    return QueryStatus(
        int(progress["batchId"]),
        int(progress["numInputRows"]),
        int(progress["durationMs"].get("triggerExecution", 0)),
    )
