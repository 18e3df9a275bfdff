"""The deciding part of `run`; a replica first joins the era of the other coordinators, and then watches for its end."""

from contextlib import ExitStack
from functools import partial

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll_pipeline.jobs import coordinate
from wakeroll_pipeline.jobs.catch_up import catch_up
from wakeroll_pipeline.jobs.era_watch import EraWatch
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.operators.shard_operator import Counts
from wakeroll_pipeline.recovery.log_marks import LogWatch, marks_in
from wakeroll_pipeline.recovery.replica_start import join
from wakeroll_pipeline.runtime.deciding_queries import query_of, topics_of
from wakeroll_pipeline.settings import Settings


class Deciding:
    """The deciding query of this process."""

    def __init__(self, spark: SparkSession, settings: Settings, counts: Counts, health: Health) -> None:
        """Prepare; the shards report to `counts`, and a long start is reported to `health`."""
        self._spark = spark
        self._settings = settings
        self._counts = counts
        self._health = health
        self._watch: EraWatch | None = None
        self._log_watch = LogWatch(settings)

    def start(self, stack: ExitStack) -> StreamingQuery:
        """Start the query, after single batches while the waiting records are too large; `stack` ends the watch.

        Raises:
            InvalidUsage, JobFailed, NotReachable: as `wakeroll_pipeline.jobs.coordinate.start`; or a replica has no
            snapshots to
                begin with.
        """
        settings = self._settings
        if settings.replica:
            watch = EraWatch(settings)  # created before the eras are read, so that it misses none
            self._watch = stack.enter_context(watch.start(join(self._spark, settings)))
        start = partial(coordinate.start, self._spark, counts=self._counts)
        waits = partial(self._health.beat, "run")
        catch_up(settings, query_of(settings), topics_of(settings), start, waits)
        return start(settings)

    def raise_if_outdated(self) -> None:
        """Raise an error if this coordinator must not go on.

        Raises:
            InvalidUsage: the log has other records in the place of those that were applied.
            LaterEra: another coordinator decides in a later era than this replica.
        """
        if self._watch is not None:
            self._watch.raise_if_later()
        self._log_watch.look_if_due(marks_in(self._counts.marks.value))
