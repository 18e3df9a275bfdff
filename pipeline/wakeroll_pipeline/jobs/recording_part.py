"""The recording part of `run`: it begins to write the tables when this process gets its turn."""

import logging

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.epoch_ms import now_ms
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.catch_up import catch_up
from wakeroll_pipeline.jobs.snapshot_schedule import SnapshotSchedule
from wakeroll_pipeline.kafka.published_lines import LinePublisher
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.metrics.run_metrics import RunMetrics
from wakeroll_pipeline.recovery.batch_files import discard_incomplete
from wakeroll_pipeline.recovery.checkpoint_state import furthest, has_batches, progress_of
from wakeroll_pipeline.recovery.snapshots import SnapshotWriter
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import queries_of
from wakeroll_pipeline.runtime.process_locks import ProcessLocks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

log = logging.getLogger("wakeroll.run")


class Recording:
    """The query `record` of this process, and the snapshots that it takes."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        metrics: RunMetrics,
        locks: ProcessLocks,
        started_ms: int,
        publisher: LinePublisher | None = None,
    ) -> None:
        """Prepare; nothing is written before `start`.

        Args:
            spark: a session.
            settings: settings of the deployment.
            metrics: receives figures about the tables.
            locks: locks of this process.
            started_ms: start of this process (epoch ms).
            publisher: publishes the newest lines of the chains; None: it cannot.
        """
        self._spark = spark
        self._settings = settings
        self._metrics = metrics
        self._locks = locks
        self._turn: WriteTurn | None = None
        """The turn of this process; None before it is taken."""
        self._is_begun = False
        self._schedule = SnapshotSchedule(settings, started_ms)
        self._snapshots: SnapshotWriter | None = None
        """None before the first snapshots."""
        self._publisher = publisher
        self._chains = Chains(settings.warehouse, None if publisher is None else publisher.publish)

    @property
    def is_due(self) -> bool:
        """Whether this process may begin to write, because it has its turn."""
        return not self._is_begun and self._locks.has_turn()

    def start(self) -> StreamingQuery:
        """Start the query, after single batches while the records that wait are too large.

        Raises:
            InvalidUsage, JobFailed: as `wakeroll_pipeline.jobs.record.start`. LeaseLost, Fenced: another process has
            the turn.
            NotReachable: no broker answered; it may be called again.
        """
        self._metrics.begin_writing()
        settings, tables = self._settings, self._metrics.tables
        if self._turn is None:
            ensure_tables(self._spark, settings.warehouse, settings.keep_versions_ms)
            self._turn = WriteTurn(settings, self._locks.turn_lease)
        turn = self._turn
        discard_incomplete(settings.checkpoint(turn.checkpoint))
        topics = settings.connection.topics

        def begin(its: Settings) -> StreamingQuery:
            counts = tables.did_upkeep, turn, tables.diverged, self._schedule.count
            return record.start(self._spark, its, *counts, self._chains)

        def waits() -> None:
            self._metrics.health.beat("run")

        catch_up(settings, turn.checkpoint, (*topics.control, topics.decisions), begin, waits)
        query = begin(settings)
        tables.chains.watch(self._chains.heads)
        self._is_begun = True
        return query

    def take_snapshots_if_due(self, source: Settings | None) -> None:
        """Append the states of the shards in the checkpoint of a coordinator, if snapshots are due and states exist.

        While the brokers cannot be reached, another process may be writing the tables. Then nothing is appended, and
        the call returns at once, so that the loop of this process continues and stays alive.

        Args:
            source: settings of the coordinator; None: the coordinator that has applied most of the log.
        """
        if self._turn is None or not self._is_begun:
            return
        began_ms = now_ms()

        def reached() -> int:
            return _reached(source or furthest(self._settings))

        if not self._schedule.is_due(began_ms, reached):
            return
        source = source or furthest(self._settings)
        if not any(has_batches(source, query) for query in queries_of(source)) or not self._turn.is_confirmed():
            return
        self._schedule.begin(began_ms, _reached(source))
        if self._snapshots is None:
            self._snapshots = SnapshotWriter(self._spark, self._settings, self._turn.number, self._chains)
        taken = self._snapshots.take(source)
        ended_ms = now_ms()
        self._schedule.end(began_ms, ended_ms, taken.state_bytes)
        self._metrics.tables.took_snapshots(taken.shards)
        log.info("snapshots of %d shards in %.1f s", taken.shards, (ended_ms - began_ms) / 1_000)

    def close(self) -> None:
        """Append the last lines of the chains, and publish them; the query has ended."""
        if self._turn is not None and self._is_begun:
            self._chains.gather(ArrowSink(self._turn.number).append)
        if self._publisher is not None:
            self._publisher.close()


def _reached(source: Settings) -> int:
    """Return the number of records that the states in the checkpoint of a coordinator include."""
    checkpoints = (source.checkpoint(query) for query in queries_of(source))
    return sum(sum(its.next.values()) for one in checkpoints if (its := progress_of(one)) is not None)
