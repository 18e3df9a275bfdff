"""A thread that reads the progress of the queries and the ends of their topics, for the metrics of a process.

The jobs do not wait for the thread, and it cannot stop them: a failure is logged, and the next round tries again.
"""

import json
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Self

from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.metrics.query_metrics import Progress
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.metrics.systemd_reports import is_awaited
from wakeroll_pipeline.operators.shard_operator import Counts
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.metrics")

_PROGRESS_S = 1.0
"""How often the progress is read (s). Spark keeps the last 100 reports of each query, so none is missed."""
_ENDS_S = 5.0
"""How often the ends of the topics and the figures of the JVM are read (s)."""
_ANSWER_S = 3.0
_CAUGHT_UP = 10_000
"""Maximum number of unread records of a query that has caught up: one second at the highest measured rate."""
_STUCK_S = 60.0
"""Time (s) after which a query with waiting records that has completed no batch is not ready."""


def sampled(
    settings: Settings, metrics: RunMetrics, queries: Sequence[StreamingQuery], counts: Counts | None = None
) -> "AbstractContextManager[MetricsSampler | None]":
    """Return the context in which the metrics of queries are updated, and with them the health of the process.

    Without exposed metrics, and without systemd's watchdog, no sampler is needed.

    Args:
        settings: the brokers, and whether metrics are exposed.
        metrics: receive the figures.
        queries: the running queries.
        counts: the shards' reports, if one of the queries runs the state machines.
    """
    is_read = settings.metrics_port or is_awaited()
    return MetricsSampler(metrics, queries, settings.connection, counts) if is_read else nullcontext()


class MetricsSampler:
    """Updates the metrics of running queries during a `with` block."""

    def __init__(
        self,
        metrics: RunMetrics,
        queries: Sequence[StreamingQuery],
        connection: Connection,
        counts: Counts | None = None,
    ) -> None:
        """Prepare as `sampled` does; nothing is read yet."""
        self._metrics = metrics
        self._queries = {str(query.name): query for query in queries}
        self._counts = counts
        self._stop = threading.Event()
        self._cluster = Cluster(connection, patience_s=_ANSWER_S, stop=self._stop)
        self._seen: dict[str, tuple[str, int]] = {}
        """Query -> time and batch of the last report that was read."""
        self._caught_up: set[str] = set()
        """Queries that have caught up at least once."""
        self._thread = threading.Thread(target=self._run, name="metrics sampler", daemon=True)
        self._trouble = Trouble(log, "metrics are updated again")
        self._silence = Trouble(log, "the ends of the topics can be read again")

    def __enter__(self) -> Self:
        """Start the thread."""
        for name in self._queries:
            self._metrics.queries.begin(name, time.time())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the thread, before Spark ends."""
        self._stop.set()
        self._thread.join(2 * _ANSWER_S)

    def add(self, query: StreamingQuery) -> None:
        """Add a query that was started later."""
        self._metrics.queries.begin(str(query.name), time.time())
        self._queries = self._queries | {str(query.name): query}

    def _run(self) -> None:
        ends_due_s = 0.0
        while not self._stop.wait(_PROGRESS_S):
            try:
                self._sample()
                if time.monotonic() >= ends_due_s:
                    ends_due_s = time.monotonic() + _ENDS_S
                    self._metrics.jvm.sample()
                    self._measure_unread()
            except Exception as problem:  # no failure of a metric may stop the jobs
                if not self._stop.is_set():
                    self._trouble.began(f"metrics are not updated: {str(problem).partition(chr(10))[0]}; retrying")
            else:
                self._trouble.ended()

    def _sample(self) -> None:
        """Read the reports of the queries and the shards."""
        for name, query in self._queries.items():
            self._metrics.queries.count(name, self._new_reports(name, query))
        self._judge()
        if self._counts is not None:
            counts = self._counts
            self._metrics.shards.update(dict(counts.bytes.value), counts.failures.value, dict(counts.rejections.value))
            self._metrics.shards.update_places(
                dict(counts.eras.value), dict(counts.levels.value), dict(counts.used.value)
            )

    def _judge(self) -> None:
        """Report whether this process is ready: its queries have caught up once, and read new records."""
        queries, health = self._metrics.queries, self._metrics.health
        found = {name: self._unready(name) for name in self._queries}
        for name, unready in found.items():
            health.judged(name, unready)
        if any(queries.newest(name) < 0 for name in found):
            return  # the health says so already
        if unready := next((one for one in found.values() if one), ""):
            health.awaits(unready)
        else:
            health.ready()

    def _unready(self, name: str) -> str:
        """Return why a query is not ready; empty if it is."""
        queries = self._metrics.queries
        if queries.newest(name) < 0:
            return f"the first batch of {name} is not complete"
        unread, age_s = queries.unread(name), time.time() - queries.ended_s(name)
        if name not in self._caught_up:
            if unread is None or unread > _CAUGHT_UP:
                return f"{name} catches up: {'records' if unread is None else f'{unread} records'} wait"
            self._caught_up.add(name)
        if unread and age_s > _STUCK_S:
            return f"{name} has completed no batch for {age_s:.0f} s, and {unread} records wait"
        return ""

    def _new_reports(self, name: str, query: StreamingQuery) -> list[Progress]:
        """Return the reports since the last call, in order of time.

        `query.recentProgress` would decode all 100 reports each time.
        """
        kept = query._jsq.recentProgress()
        found: list[Progress] = []
        for number in range(len(kept) - 1, -1, -1):
            report = json.loads(kept[number].json())
            if (report["timestamp"], report["batchId"]) == self._seen.get(name):
                break
            found.append(report)
        if found:
            self._seen[name] = (found[0]["timestamp"], found[0]["batchId"])
        return found[::-1]

    def _measure_unread(self) -> None:
        places = {place for reached in self._metrics.queries.reached.values() for place in reached}
        try:
            self._metrics.queries.measure_unread(self._cluster.ends(places))
        except NotReachable as error:
            if not self._stop.is_set():
                self._silence.began(f"the number of unread records is not known: {error}; retrying")
        else:
            self._silence.ended()
