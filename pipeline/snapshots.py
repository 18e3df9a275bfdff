"""Snapshots: the state of every shard as rows of Delta, so that a lost checkpoint is no lost group."""

from threading import Lock

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from model.rows import DECISIONS, SNAPSHOTS
from model.shard import VERSION
from pipeline.checkpoints import has_batches, read_states
from pipeline.cluster import Cluster
from pipeline.decided import has_decided
from pipeline.machines import query_of, topics_of
from pipeline.restore import Restore, ShardSnapshot, restore_file, write_restore
from pipeline.schemas import schema_of
from pipeline.settings import Settings
from pipeline.sinks.delta import append
from pipeline.tables import highest_positions, path_of
from wakeroll.errors import InvalidUsage

APPENDING = Lock()
"""Held by whoever writes `snapshots`: one thread of a process takes them, another one looks after the tables."""


def take_snapshots(spark: SparkSession, settings: Settings) -> int:
    """Append the state of each shard that has moved since its last snapshot; return how many."""
    known = highest_positions(spark, settings.warehouse, SNAPSHOTS)
    rows = []
    for shard, body in read_states(spark, settings):
        if shard.offset > known.get((shard.topic, shard.partition), -1):
            rows.append((shard.topic, shard.partition, shard.offset, shard.era, VERSION, shard.now_ms, bytearray(body)))
    if rows:
        frame = spark.createDataFrame(rows, schema_of(SNAPSHOTS.row))
        with APPENDING:
            append(frame, path_of(settings.warehouse, SNAPSHOTS))
    return len(rows)


def prepare_restore(spark: SparkSession, settings: Settings) -> Restore:
    """Let the next `run` start from the newest snapshots; it reads the log on from there.

    Raises:
        InvalidUsage: there is a checkpoint, which knows better.
        NotReachable: no broker answered.
    """
    if has_batches(settings):
        raise InvalidUsage(f"{settings.checkpoint(query_of(settings))} has a state, which `wakeroll run` goes on from")
    rows = (
        spark.read.format("delta")
        .load(str(path_of(settings.warehouse, SNAPSHOTS)))
        .where(f.col("version") == VERSION)
        .groupBy("topic", "partition")
        .agg(f.max("offset").alias("offset"), f.max_by("body", "offset").alias("body"))
        .collect()
    )
    eras = (
        spark.read.format("delta")
        .load(str(path_of(settings.warehouse, DECISIONS)))
        .select(f.max(f.substring_index("shard", ".", -1).cast("int")).alias("era"))
        .collect()
    )
    topics = topics_of(settings)
    partitions = [(topic, partition) for topic in topics for partition in range(settings.partitions)]
    ends = Cluster(settings.connection).offsets(partitions)
    restore = Restore(
        era=(eras[0].era or 0) + 1,
        snapshots={
            f"{row.topic}-{row.partition}": ShardSnapshot(row.offset, bytes(row.body))
            for row in rows
            if row.topic in topics
        },
        ends={f"{topic}-{partition}": end for (topic, partition), (_, end) in ends.items()},
    )
    write_restore(settings, restore)
    return restore


def refuse_to_forget(settings: Settings) -> None:
    """Refuse to start from nothing where decisions exist: identities would be used twice, and everybody evicted.

    Raises:
        InvalidUsage: the checkpoint is empty, decisions exist, and `wakeroll restore` was not asked.
        NotReachable: no broker answered.
    """
    if has_batches(settings):
        restore_file(settings).unlink(missing_ok=True)
        return
    if restore_file(settings).exists():
        return
    if has_decided(settings):
        raise InvalidUsage(
            f"{settings.checkpoint(query_of(settings))} is empty, but {settings.connection.topics.decisions} has "
            "decisions of its shards; if the checkpoint was lost, or another query had them, start with "
            "`wakeroll restore`; for a new deployment choose another --prefix"
        )
