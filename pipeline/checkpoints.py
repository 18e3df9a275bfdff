"""The coordinator's own state, read from its checkpoint by Spark's `statestore` source."""

import json
import tempfile
from collections.abc import Sequence
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


def refuse_foreign(checkpoint: Path, topics: Sequence[str], partitions: int) -> None:
    """Refuse to go on from a checkpoint of other topics, or of another number of partitions.

    A group's shard follows from that number: with another, each group would get a second coordinator, without a state.

    Args:
        checkpoint: the folder of one query; it need not be there.
        topics: what the query is about to read.
        partitions: how many each of them has.

    Raises:
        InvalidUsage: it was made with others.
    """
    planned = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda file: int(file.name))
    if not planned:
        return
    # Spark's own file: a version, a line about the batch, and a line a source: {topic: {partition: offset}}.
    reached = json.loads(planned[-1].read_text(encoding="utf-8").splitlines()[-1])
    found = {topic: len(offsets) for topic, offsets in reached.items()}
    expected = dict.fromkeys(topics, partitions)
    if found != expected:
        raise InvalidUsage(
            f"{checkpoint} is the checkpoint of {_listed(found)}; this deployment has {_listed(expected)}; "
            "give it the prefix and the partitions it was made with, or another --checkpoints"
        )


def _listed(topics: dict[str, int]) -> str:
    return ", ".join(f"{topic} ({count} partitions)" for topic, count in sorted(topics.items()))


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
