"""The one adapter that knows both Spark and the machines: a shard's records in, its decisions out.

The state is grouped by (topic, partition), so a batch calls Python once a shard, however many groups it holds; a call
a group would cost 0.7 ms each.  Spark's timers are not used: time is an event.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import pandas as pd
from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from model.decision_sizes import bounded
from model.decisions import TO_A_CLIENT, AnyDecision, Rejected, Wake
from model.records import Record
from model.shard import VERSION, Shard
from model.signing import Keys
from pipeline.recovery.initial_state import Restore, other_version
from wakeroll.connection import Topics

PUBLISHED = "topic string, key binary, value binary"
"""What Kafka's sink takes."""
_STATE = "version int, body binary"
"""Only renames are possible later: hence a version and bytes."""
_AT_ONCE = 16 * 1024 * 1024
"""Bytes of decisions that are handed to Spark together."""

Frames = Iterator[pd.DataFrame]


class _Newest(AccumulatorParam[dict[str, int]]):
    """Adds figures by name: the newest of each stays."""

    def zero(self, _value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, known: dict[str, int], news: dict[str, int]) -> dict[str, int]:  # noqa: N802
        known.update(news)
        return known


class Counts(NamedTuple):
    """What the shards of a query report to the process that runs it; those of a repeated batch again."""

    failures: Accumulator[int]
    """Events that the machine itself failed at."""
    bytes: Accumulator[dict[str, int]]
    """Shard, like ``groups-3`` -> the size of its state after its last batch."""

    @classmethod
    def start(cls, spark: SparkSession) -> "Counts":
        """Begin to count."""
        context = spark.sparkContext
        return cls(context.accumulator(0), context.accumulator({}, _Newest()))


def decide(
    records: DataFrame, partitions: int, topics: Topics, restore: Restore, keys: Keys, counts: Counts
) -> DataFrame:
    """Run the machines over records of the control topics; return what to publish: topic, key, value.

    Args:
        records: topic, partition, offset, timestamp_ms, key, value.
        partitions: of each control topic.
        topics: where decisions go.
        restore: what shards without a state start from.
        keys: verify signed records; they go to the executors with the function, and are kept nowhere.
        counts: what is reported.
    """
    function: Callable[[tuple[str, int], Frames, GroupState], Frames] = partial(
        run_shard, partitions, topics, restore, keys, counts
    )
    return records.groupBy("topic", "partition").applyInPandasWithState(
        function, PUBLISHED, _STATE, "append", GroupStateTimeout.NoTimeout
    )


def run_shard(
    partitions: int,
    topics: Topics,
    restore: Restore,
    keys: Keys,
    counts: Counts,
    at: tuple[str, int],
    frames: Frames,
    state: GroupState,
) -> Frames:
    """Run one shard's records of one batch; Spark calls it with the shard's topic and partition."""
    topic, partition = at[0], int(at[1])
    shard = _shard(topic, partition, partitions, restore, keys, state)
    published: list[tuple[str, bytes, bytes]] = []
    waiting = 0
    for record in _in_order(topic, partition, frames):
        for made in shard.apply(record):
            decision, value = bounded(made)
            if isinstance(decision, Rejected) and decision.rule == "internal":
                counts.failures.add(1)
            published += _addressed(decision, value, topics, shard.name)
            waiting += len(value)
        if waiting >= _AT_ONCE:
            yield _frame(published)
            published, waiting = [], 0
    # Ticks move the clock, so there is something to keep after every batch.
    body = shard.body()
    state.update((VERSION, body))
    counts.bytes.add({shard.name: len(body)})
    if published:
        yield _frame(published)


def _shard(topic: str, partition: int, partitions: int, restore: Restore, keys: Keys, state: GroupState) -> Shard:
    """Make the shard as its last batch left it, else as it is to begin."""
    if not state.exists:
        its = restore.beginning(topic, partition)
        era, until = its.era, its.quiet_until
        return Shard(topic, partition, partitions, its.body, era=era, quiet_until=until, signatures=keys)
    version, body = state.get
    if version != VERSION:
        raise RuntimeError(f"the checkpoint of {topic}-{partition} {other_version(version)}")
    return Shard(topic, partition, partitions, body, signatures=keys)


def _frame(published: list[tuple[str, bytes, bytes]]) -> pd.DataFrame:
    return pd.DataFrame(published, columns=["topic", "key", "value"])


def _in_order(topic: str, partition: int, frames: Frames) -> Iterator[Record]:
    """Yield a shard's records by offset; Spark hands them over in pieces and in no order."""
    rows: list[tuple[int, int, bytes | None, bytes | None]] = []
    for frame in frames:
        rows += zip(frame["offset"], frame["timestamp_ms"], frame["key"], frame["value"], strict=True)
    rows.sort(key=lambda row: row[0])
    for offset, timestamp_ms, key, value in rows:
        yield Record(topic, partition, int(offset), int(timestamp_ms), key, value)


def _addressed(decision: AnyDecision, value: bytes, topics: Topics, shard: str) -> Iterator[tuple[str, bytes, bytes]]:
    """Address a decision, encoded as `value`: to the record, and to the inbox of the client that must hear it."""
    # A decision about no group is keyed by its shard: with a null key, a repeated batch would choose another partition,
    # and readers could not tell that they have seen it.
    key = decision.queue.key if isinstance(decision, Wake) else decision.group_id or shard
    yield topics.decisions, key.encode(), value
    if isinstance(decision, TO_A_CLIENT) and decision.client_id:
        yield topics.inbox, decision.client_id.encode(), value
