"""The coordinator's own state, read from its checkpoint by Spark's `statestore` source."""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from model.shard import Shard
from pipeline.jobs import coordinate
from pipeline.settings import Settings
from wakeroll.errors import InvalidUsage


def has_batches(settings: Settings) -> bool:
    """Return whether `coordinate` has committed a batch."""
    return any((settings.checkpoint(coordinate.NAME) / "commits").glob("[0-9]*"))


def read_shards(spark: SparkSession, settings: Settings) -> list[Shard]:
    """Return the shards as the last committed batch of `coordinate` left them, by name.

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    return [shard for shard, _ in read_states(spark, settings)]


def read_states(spark: SparkSession, settings: Settings) -> list[tuple[Shard, bytes]]:
    """Return each shard, and the bytes that it is made of.

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    checkpoint = settings.checkpoint(coordinate.NAME)
    if not has_batches(settings):
        raise InvalidUsage(f"no batch has been committed in {checkpoint}; has `wakeroll run` been started?")
    # The stores of a session report to a coordinator that only the streaming side makes; this makes it.
    _ = spark.streams.active
    with tempfile.TemporaryDirectory() as folder:
        # The source encodes the spaces of a path and then does not find it.
        link = Path(folder) / "checkpoint"
        link.symlink_to(checkpoint)
        rows = spark.read.format("statestore").load(str(link)).collect()
    states = []
    for row in rows:
        body = bytes(row.value.groupState.body)
        states.append((Shard(row.key.topic, row.key.partition, settings.partitions, body), body))
    return sorted(states, key=lambda state: state[0].name)
