"""Divergences of coordinators: `record` compares repeated decisions, logs and counts differences, and stores them."""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from model.decision_order import without_era
from model.rows import DIVERGENCES
from pipeline.ledger.schemas import schema_of
from pipeline.ledger.tables import highest_positions, path_of
from pipeline.operators.decision_comparer import MOST_COMPARED, DecisionComparer, Difference, Seen
from pipeline.sinks.delta_sink import append
from pipeline.storage.place import Folder, Place

log = logging.getLogger("wakeroll.run")

Options = Callable[[Place], Mapping[str, str]]
"""Returns the options of the next append to a table."""


class Divergences:
    """Finds decisions that differ from those with the same identity, and appends them to their table."""

    def __init__(self, spark: SparkSession, warehouse: Folder, options: Options | None = None) -> None:
        """Begin without decisions; `options` returns those of an append, if it needs any."""
        self._spark = spark
        self._warehouse = warehouse
        self._options = options
        self._comparer = DecisionComparer()
        self._stored: dict[tuple[object, ...], int] | None = None
        """Partition -> highest offset in the table; read before the first append."""
        self._warned: set[tuple[str, str | None, str | None]] = set()

    @property
    def count(self) -> int:
        """Number of differences since the start."""
        return self._comparer.differences

    def look_at(self, decisions: DataFrame, count: int, writers: Collection[str]) -> None:
        """Compare the decisions of a batch, if several processes have published decisions in the last minutes.

        Args:
            decisions: result of `pipeline.operators.ledger_rows.read_decisions`, persisted.
            count: number of its rows.
            writers: processes that published them.
        """
        if not self._comparer.must_compare(writers, time.monotonic()) or count > MOST_COMPARED:
            return
        rows = decisions.select("partition", "offset", "shard", "seq", "writer", f.xxhash64("json")).collect()
        found = self._comparer.compare([Seen(*row) for row in rows])
        if not found:
            return
        for one in found:
            self._warn(one)
        self._store(decisions, found)

    def _warn(self, one: Difference) -> None:
        """Log the first difference of each pair of processes and each machine."""
        seen, kept = one.seen, one.kept_writer
        pair = without_era(seen.shard), kept, seen.writer
        if pair in self._warned:
            return
        self._warned.add(pair)
        log.error(
            "coordinators decide differently: decision %d of %s was published by %s, and another one with the same "
            "number by %s (partition %d, offset %d); the first one is kept; stop the coordinator with the wrong keys, "
            "version or checkpoint",
            seen.seq,
            seen.shard,
            kept or "an unknown process",
            seen.writer or "an unknown process",
            seen.partition,
            seen.offset,
        )

    def _store(self, decisions: DataFrame, found: Collection[Difference]) -> None:
        if self._stored is None:
            self._stored = highest_positions(self._spark, self._warehouse, DIVERGENCES)
        kept_of = {
            (one.seen.partition, one.seen.offset): one.kept_writer
            for one in found
            if one.seen.offset > self._stored.get((one.seen.partition,), -1)
        }
        if not kept_of:
            return
        offsets = f.col("offset").isin(*{offset for _, offset in kept_of})
        rows = [
            (
                *(row.partition, row.offset, row.shard, row.seq, row.published_ms, row.writer),
                *(kept_of[row.partition, row.offset], row.json),
            )
            for row in decisions.where(offsets).collect()
            if (row.partition, row.offset) in kept_of
        ]
        table = path_of(self._warehouse, DIVERGENCES)
        frame = self._spark.createDataFrame(rows, schema_of(DIVERGENCES.row))
        append(frame, table, None if self._options is None else self._options(table))
        for partition, offset in kept_of:
            self._stored[partition,] = max(offset, self._stored.get((partition,), -1))
