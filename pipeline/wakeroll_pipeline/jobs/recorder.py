"""The recording part of `run`: it begins to write the tables when it is the turn of this process."""

import logging

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.catch_up import catch_up
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.recovery.batch_files import discard_incomplete
from wakeroll_pipeline.recovery.checkpoint_state import furthest, has_batches
from wakeroll_pipeline.recovery.record_turn import Turn
from wakeroll_pipeline.recovery.snapshots import take_snapshots
from wakeroll_pipeline.runtime.deciding_queries import queries_of
from wakeroll_pipeline.runtime.process_locks import ProcessLocks
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.run")

_FIRST_SNAPSHOT_MS = 60_000
"""Longest time from the start to the first snapshot (ms), so that a new deployment can soon be restored."""


class Recorder:
    """The query `record` of this process, and the snapshots that it takes."""

    def __init__(
        self, spark: SparkSession, settings: Settings, metrics: RunMetrics, locks: ProcessLocks, started_ms: int
    ) -> None:
        """Prepare; nothing is written before `start`. The process has run since `started_ms` (epoch ms)."""
        self._spark = spark
        self._settings = settings
        self._metrics = metrics
        self._locks = locks
        self._turn: Turn | None = None
        """The turn of this process; None before it is taken."""
        self._is_begun = False
        self._snapshot_due_ms = started_ms + min(settings.snapshot_interval_ms, _FIRST_SNAPSHOT_MS)

    @property
    def is_due(self) -> bool:
        """Whether it is the turn of this process to begin."""
        return not self._is_begun and self._locks.has_turn()

    def start(self) -> StreamingQuery:
        """Start the query, after single batches while the records that wait are too large.

        Raises:
            InvalidUsage, JobFailed: as `wakeroll_pipeline.jobs.record.start`.
            LeaseLost, Fenced: it is the turn of another process.
            NotReachable: no broker answered; it may be called again.
        """
        self._metrics.begin_writing()
        settings, tables = self._settings, self._metrics.tables
        if self._turn is None:
            ensure_tables(self._spark, settings.warehouse, settings.keep_versions_ms)
            self._turn = Turn(settings, self._locks.turn_lease)
        turn = self._turn
        discard_incomplete(settings.checkpoint(turn.checkpoint))
        topics = settings.connection.topics

        def begin(its: Settings) -> StreamingQuery:
            return record.start(self._spark, its, tables.did_upkeep, turn, tables.diverged)

        def waits() -> None:
            self._metrics.health.beat("run")

        catch_up(settings, turn.checkpoint, (*topics.control, topics.decisions), begin, waits)
        query = begin(settings)
        self._is_begun = True
        return query

    def take_snapshots_if_due(self, source: Settings | None) -> None:
        """Append the states of the shards in the checkpoint of a coordinator, if it is time and there are states.

        While the brokers are away, it is not certain whether another process writes the tables. Then nothing is
        appended, and nothing is awaited: the loop of this process goes on, and with it its liveness.

        Args:
            source: settings of the coordinator; None: the one that is furthest in the log.
        """
        if self._turn is None or not self._is_begun or now_ms() < self._snapshot_due_ms:
            return
        source = source or furthest(self._settings)
        if not any(has_batches(source, query) for query in queries_of(source)) or not self._turn.is_confirmed():
            return
        self._snapshot_due_ms = now_ms() + self._settings.snapshot_interval_ms
        shards = take_snapshots(self._spark, source, self._turn.number)
        self._metrics.tables.took_snapshots(shards)
        log.info("snapshots of %d shards", shards)
