"""Snapshots: the state of every shard as rows of a Delta table, from which a lost checkpoint is restored."""

from collections.abc import Callable, Iterable, Iterator, Set
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from delta.tables import DeltaTable
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as f

from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.resharding import number_of
from wakeroll_model.rows import SNAPSHOTS, SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE, VERSION
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.maintenance import APPENDING
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, key_of, newest_of, row_of, snapshot_of
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import as_declared
from wakeroll_pipeline.recovery.checkpoint_state import read_states
from wakeroll_pipeline.recovery.initial_state import creator_of, place_of, read_restore
from wakeroll_pipeline.runtime.deciding_queries import queries_of, topics_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.parquet_files import STATES
from wakeroll_pipeline.storage.place import Place


class Taken(NamedTuple):
    """Snapshots that were appended."""

    shards: int
    """Number of shards that have changed since their last snapshot."""
    state_bytes: int
    """Size of the states of all shards together."""


class SnapshotWriter:
    """Appends the states of shards to the table of snapshots. No other process may append to it meanwhile.

    The table is read once. After that, this object tracks its snapshots itself.
    """

    def __init__(
        self, spark: SparkSession, settings: Settings, number: int | None = None, chains: Chains | None = None
    ) -> None:
        """Read the keys of the existing snapshots.

        Args:
            spark: a session.
            settings: settings of the deployment.
            number: number of the turn of this process, which has raised its fence; None: there are no fences.
            chains: the hash chains of the tables, if other code of this process appends to them too.
        """
        self._spark = spark
        self._path = path_of(settings.warehouse, SNAPSHOTS)
        self._sink = ArrowSink(number, STATES, Chains(settings.warehouse) if chains is None else chains)
        snapshots = spark.read.format("delta").load(self._path.for_spark())
        newest = snapshots.groupBy("topic", "partition", "era").agg(f.max("offset").alias("at")).collect()
        self._newest = {(row.topic, row.partition, row.era): int(row["at"]) for row in newest}
        """Topic, partition and era -> offset of the newest snapshot."""

    def take(self, source: Settings) -> Taken:
        """Append the state of each shard that has changed since its last snapshot.

        The initial state of a restored shard is appended once too: a replay of its era starts there.

        Args:
            source: settings of the coordinator whose checkpoint has the states.

        Raises:
            Fenced: another process writes the tables.
            InvalidUsage: there is no checkpoint with a committed batch.
        """
        states = read_states(self._spark, source)
        moved = [
            (shard, shard.offset, body)
            for shard, body in states
            if self._is_new((shard.topic, shard.partition), shard.era, shard.offset)
        ]
        rows = [*_begun(source, self._is_new), *moved]
        _append(self._sink, self._path, rows)
        for shard, offset, _ in rows:
            stream = (shard.topic, shard.partition, shard.era)
            self._newest[stream] = max(offset, self._newest.get(stream, _NONE))
        return Taken(len(moved), sum(len(body) for _, body in states))

    def _is_new(self, place: ControlPartition, era: int, offset: int) -> bool:
        return offset > self._newest.get((*place, era), _NONE)


_NONE = -2
"""A value below the offsets of all snapshots. (-1 is the offset of a state before the first record.)"""


def replace_snapshots(spark: SparkSession, settings: Settings, number: int | None = None) -> None:
    """Append the initial states of all shards, in place of the states after the same records.

    Raises:
        Fenced: as `SnapshotWriter.take`.
    """
    begun = list(_begun(settings))
    same = [
        (f.col("topic") == shard.topic) & (f.col("partition") == shard.partition) & (f.col("offset") == offset)
        for shard, offset, _ in begun
    ]
    if same:
        path = path_of(settings.warehouse, SNAPSHOTS)
        why = "states of another number of partitions"
        with Chains(settings.warehouse).rewriting(SNAPSHOTS, None, why, ArrowSink(number).append):
            DeltaTable.forPath(spark, path.for_spark()).delete(reduce(or_, same))
            _append(ArrowSink(number, STATES), path, begun)


def _append(sink: ArrowSink, path: Place, states: Iterable[tuple[Shard, int, bytes]]) -> None:
    # Not with Spark, which copies a state several times in the driver's heap.
    rows = [snapshot_of(*state) for state in states]
    if rows:
        with APPENDING:
            sink.append(arrow_table(SnapshotRow, rows), path)


def _begun(
    settings: Settings, is_wanted: Callable[[ControlPartition, int, int], bool] = lambda *_: True
) -> Iterator[tuple[Shard, int, bytes]]:
    """Yield each restored shard in its initial state, the offset before its first record, and the encoded state.

    Args:
        settings: settings of the coordinator.
        is_wanted: receives place, era and offset of a state, before it is decoded; returns whether to yield it.
    """
    for query in queries_of(settings):
        for name, its in read_restore(settings, query).shards.items():
            if its.body is None and its.era == 1:
                continue  # a replica without a snapshot begins with the log, as the first coordinator did
            place, offset = place_of(name), its.offset - 1
            if is_wanted(place, its.era, offset):
                shard = Shard(
                    *place, settings.partitions, its.body, era=its.era, quiet_until=its.quiet_until, level=its.level
                )
                yield shard, offset, shard.body()


def has_snapshots(settings: Settings) -> bool:
    """Return whether the warehouse has a table of snapshots, which may be empty."""
    return is_delta(path_of(settings.warehouse, SNAPSHOTS))


def newest_number(spark: SparkSession, settings: Settings) -> int | None:
    """Return the number of partitions of the newest snapshots that can be read; None if there are none."""
    if not has_snapshots(settings):
        return None
    rows = _newest_rows(spark, settings, f.col("version").between(READABLE[0], READABLE[-1]))
    return max((number_of(row.body) for row in rows), default=None)


def newest_snapshots(spark: SparkSession, settings: Settings) -> dict[ControlPartition, SnapshotRow]:
    """Return the newest undamaged snapshot of each shard of the deciding query.

    Raises:
        InvalidUsage: the tables are missing, or the newest snapshots have another version.
    """
    if not has_snapshots(settings):
        raise InvalidUsage(f"no table 'snapshots' in {settings.warehouse}; {NO_TABLES}")
    rows = _newest_rows(spark, settings, f.lit(True))
    if other := sorted({row.version for row in rows} - {*READABLE}):
        raise InvalidUsage(
            f"the newest snapshots have version {other[0]}, but this program reads versions {READABLE[0]} to "
            f"{VERSION}; run {creator_of(other[0])}, or restore with --from-log: then a new era begins with the log, "
            "and settings and offsets that are older than the log are lost"
        )
    return {(row.topic, row.partition): row for row in rows}


def _newest_rows(spark: SparkSession, settings: Settings, condition: Column) -> list[SnapshotRow]:
    """Return the newest intact snapshot of each shard of the deciding query, among those that meet a condition.

    The first query finds all places, without the states; the second one reads only the chosen states.
    """
    snapshots = (
        as_declared(spark.read.format("delta").load(path_of(settings.warehouse, SNAPSHOTS).for_spark()), SNAPSHOTS)
        .where(condition & f.col("topic").isin(*topics_of(settings)))
        .select(*SnapshotRow.__struct_fields__)
    )
    keys = [SnapshotKey(*row) for row in snapshots.select(*SnapshotKey._fields).distinct().collect()]

    def choose(damaged: Set[SnapshotKey]) -> list[SnapshotRow]:
        wanted = [
            reduce(and_, [f.col(name) == f.lit(value) for name, value in zip(key._fields, key, strict=True)])
            for key in newest_of(keys, damaged)
        ]
        rows = snapshots.where(reduce(or_, wanted)).collect() if wanted else []
        return list({key_of(row): row for row in map(row_of, rows)}.values())

    return intact(choose)


NO_TABLES = "name the --home of the deployment, or, if its tables are lost too, restore with --from-log"
"""Remedy for missing tables."""
