"""Divergences of coordinators: `record` compares repeated decisions, and logs, counts and stores differences."""

import logging
import time
from collections.abc import Collection, Sequence

from wakeroll_model.decision_order import without_era
from wakeroll_model.rows import DIVERGENCES, DivergenceRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.operators.decision_comparer import DecisionComparer, Difference, Seen
from wakeroll_pipeline.operators.ledger_rows import ReadDecision
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.place import Folder

log = logging.getLogger("wakeroll.run")


class Divergences:
    """Finds decisions that differ from those with the same identity, and appends them to their table."""

    def __init__(self, warehouse: Folder, sink: ArrowSink, chains: Chains) -> None:
        """Begin without decisions."""
        self._chains = chains
        self._warehouse = warehouse
        self._sink = sink
        self._comparer = DecisionComparer()
        self._stored: dict[tuple[object, ...], int] | None = None
        """Partition -> highest offset in the table; read before the first append."""
        self._warned: set[tuple[str, str | None, str | None]] = set()

    @property
    def count(self) -> int:
        """Number of differences since the start."""
        return self._comparer.differences

    def look_at(self, decisions: Sequence[ReadDecision]) -> None:
        """Compare decisions of a batch, if several processes have published decisions in the last minutes."""
        writers = {one.writer for one in decisions if one.writer is not None}
        if not self._comparer.must_compare(writers, time.monotonic()):
            return
        found = self._comparer.compare([_seen(one) for one in decisions])
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

    def _store(self, decisions: Sequence[ReadDecision], found: Collection[Difference]) -> None:
        if self._stored is None:
            self._stored = self._chains.highest(DIVERGENCES)
        kept_of = {
            (one.seen.partition, one.seen.offset): one.kept_writer
            for one in found
            if one.seen.offset > self._stored.get((one.seen.partition,), -1)
        }
        if not kept_of:
            return
        rows = [
            DivergenceRow(
                partition=one.row.partition,
                offset=one.offset,
                shard=one.row.shard,
                seq=one.row.seq,
                published_ms=one.row.published_ms,
                writer=one.writer,
                kept_writer=kept_of[one.row.partition, one.offset],
                json=one.row.json,
            )
            for one in decisions
            if (one.row.partition, one.offset) in kept_of
        ]
        self._sink.append(arrow_table(DIVERGENCES.row, rows), path_of(self._warehouse, DIVERGENCES))
        for partition, offset in kept_of:
            self._stored[partition,] = max(offset, self._stored.get((partition,), -1))


def _seen(one: ReadDecision) -> Seen:
    return Seen(one.row.partition, one.offset, one.row.shard, one.row.seq, one.writer, hash(one.value))
