"""Snapshots: the state of every shard as rows of a Delta table, from which a lost checkpoint is restored."""

from collections.abc import Iterable, Iterator
from functools import reduce
from operator import or_

from delta.tables import DeltaTable
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.resharding import number_of
from wakeroll_model.rows import SNAPSHOTS, SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE, VERSION
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.maintenance import APPENDING
from wakeroll_pipeline.ledger.tables import path_of
from wakeroll_pipeline.recovery.checkpoint_state import read_states
from wakeroll_pipeline.recovery.initial_state import creator_of, place_of, read_restore
from wakeroll_pipeline.runtime.deciding_queries import queries_of, topics_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink


def take_snapshots(spark: SparkSession, settings: Settings, number: int | None = None) -> int:
    """Append the state of each shard that has changed since its last snapshot; return the number of these shards.

    The initial state of a restored shard is appended once too: a replay of its era starts there.

    Args:
        spark: a session.
        settings: settings of the coordinator.
        number: number of the turn of this process, which has raised its fence; None: there are no fences.

    Raises:
        Fenced: another process writes the tables.
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    path = path_of(settings.warehouse, SNAPSHOTS).for_spark()
    snapshots = spark.read.format("delta").load(path)
    newest = snapshots.groupBy("topic", "partition", "era").agg(f.max("offset").alias("at")).collect()
    known = {(row.topic, row.partition, row.era): int(row["at"]) for row in newest}

    def is_new(shard: Shard, offset: int) -> bool:
        return offset > known.get((shard.topic, shard.partition, shard.era), -2)

    moved = [(shard, shard.offset, body) for shard, body in read_states(spark, settings) if is_new(shard, shard.offset)]
    begun = [(shard, offset, shard.body()) for shard, offset in _begun(settings) if is_new(shard, offset)]
    _append(settings, [*begun, *moved], number)
    return len(moved)


def replace_snapshots(spark: SparkSession, settings: Settings, number: int | None = None) -> None:
    """Append the initial states of all shards, instead of the states after the same records.

    Raises:
        Fenced: as `take_snapshots`.
    """
    begun = [(shard, offset, shard.body()) for shard, offset in _begun(settings)]
    same = [
        (f.col("topic") == shard.topic) & (f.col("partition") == shard.partition) & (f.col("offset") == offset)
        for shard, offset, _ in begun
    ]
    if same:
        path = path_of(settings.warehouse, SNAPSHOTS).for_spark()
        DeltaTable.forPath(spark, path).delete(reduce(or_, same))
        _append(settings, begun, number)


def _append(settings: Settings, states: Iterable[tuple[Shard, int, bytes]], number: int | None) -> None:
    # Not with Spark, which copies a state several times in the driver's heap.
    rows = [
        SnapshotRow(
            topic=shard.topic,
            partition=shard.partition,
            offset=offset,
            era=shard.era,
            version=shard.version,
            at_ms=shard.now_ms,
            body=body,
        )
        for shard, offset, body in states
    ]
    if rows:
        with APPENDING:
            ArrowSink(number).append(arrow_table(SnapshotRow, rows), path_of(settings.warehouse, SNAPSHOTS))


def _begun(settings: Settings) -> Iterator[tuple[Shard, int]]:
    """Yield each restored shard in its initial state, and the offset before its first record."""
    for query in queries_of(settings):
        for name, its in read_restore(settings, query).shards.items():
            if its.body is None and its.era == 1:
                continue  # a replica without a snapshot begins with the log, as the first coordinator did
            place = place_of(name)
            shard = Shard(
                *place, settings.partitions, its.body, era=its.era, quiet_until=its.quiet_until, level=its.level
            )
            yield shard, its.offset - 1


def has_snapshots(settings: Settings) -> bool:
    """Return whether the warehouse has a table of snapshots, which may be empty."""
    return is_delta(path_of(settings.warehouse, SNAPSHOTS))


def newest_number(spark: SparkSession, settings: Settings) -> int | None:
    """Return the number of partitions of the newest snapshots that can be read; None if there are none."""
    if not has_snapshots(settings):
        return None
    rows = (
        spark.read.format("delta")
        .load(path_of(settings.warehouse, SNAPSHOTS).for_spark())
        .where(f.col("version").between(READABLE[0], READABLE[-1]) & f.col("topic").isin(*topics_of(settings)))
        .groupBy("topic", "partition")
        .agg(f.max_by("body", f.struct("era", "offset")).alias("body"))
        .collect()
    )
    return max((number_of(bytes(row.body)) for row in rows), default=None)


def newest_snapshots(spark: SparkSession, settings: Settings) -> dict[ControlPartition, Row]:
    """Return the newest snapshot of each shard of the deciding query: its era, offset and body.

    Raises:
        InvalidUsage: the tables are missing, or the newest snapshots have another version.
    """
    path = path_of(settings.warehouse, SNAPSHOTS).for_spark()
    if not has_snapshots(settings):
        raise InvalidUsage(f"no table 'snapshots' in {settings.warehouse}; {NO_TABLES}")
    newest = f.struct("era", "offset")
    rows = (
        spark.read.format("delta")
        .load(path)
        .where(f.col("topic").isin(*topics_of(settings)))
        .groupBy("topic", "partition")
        .agg(*(f.max_by(name, newest).alias(name) for name in ("era", "offset", "version", "body")))
        .collect()
    )
    if other := sorted({row.version for row in rows} - {*READABLE}):
        raise InvalidUsage(
            f"the newest snapshots have version {other[0]}, but this program reads versions {READABLE[0]} to "
            f"{VERSION}; run {creator_of(other[0])}, or restore with --from-log: then a new era begins with the log, "
            "and settings and offsets that are older than the log are lost"
        )
    return {(row.topic, row.partition): row for row in rows}


NO_TABLES = "name the --home of the deployment, or, if its tables are lost too, restore with --from-log"
"""Remedy for missing tables."""
