"""The coordinator's own state, read from its checkpoint by Spark's `statestore` source."""

import tempfile
from itertools import chain
from pathlib import Path

from pyspark.sql import Row, SparkSession

from model.shard import Shard
from pipeline.machines import queries_of, query_of
from pipeline.settings import Settings
from wakeroll.errors import InvalidUsage


def has_batches(settings: Settings, query: str = "") -> bool:
    """Return whether a deciding query has committed a batch; that of these settings, if none is named."""
    return any((settings.checkpoint(query or query_of(settings)) / "commits").glob("[0-9]*"))


def read_shards(spark: SparkSession, settings: Settings) -> list[Shard]:
    """Return the shards as the last committed batches of `coordinate` left them, by name.

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    return [shard for shard, _ in read_states(spark, settings)]


def read_states(spark: SparkSession, settings: Settings) -> list[tuple[Shard, bytes]]:
    """Return each shard, and the bytes that it is made of; where each machine has a query, of both.

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    checkpoints = [settings.checkpoint(query) for query in queries_of(settings) if has_batches(settings, query)]
    if not checkpoints:
        names = " or ".join(str(settings.checkpoint(query)) for query in queries_of(settings))
        raise InvalidUsage(f"no batch has been committed in {names}; has `wakeroll run` been started?")
    # The stores of a session report to a coordinator that only the streaming side makes; this makes it.
    _ = spark.streams.active
    states = []
    for row in chain.from_iterable(_rows(spark, checkpoint) for checkpoint in checkpoints):
        body = bytes(row.value.groupState.body)
        states.append((Shard(row.key.topic, row.key.partition, settings.partitions, body), body))
    return sorted(states, key=lambda state: state[0].name)


def _rows(spark: SparkSession, checkpoint: Path) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        # The source encodes the spaces of a path and then does not find it.
        link = Path(folder) / "checkpoint"
        link.symlink_to(checkpoint)
        return spark.read.format("statestore").load(str(link)).collect()
