"""The one adapter that knows both Spark and the machines: a shard's records in, its decisions out.

The state is grouped by (topic, partition), so a batch calls Python once a shard, however many groups it holds; a call
a group would cost 0.7 ms each.  Spark's timers are not used: time is an event.
"""

from collections.abc import Callable, Iterator
from functools import partial

import msgspec
import pandas as pd
from pyspark import Accumulator
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from model.decisions import TO_A_CLIENT, AnyDecision, Rejected, Wake
from model.records import Record
from model.shard import VERSION, Shard
from pipeline.restore import Restore
from wakeroll.connection import Topics

PUBLISHED = "topic string, key binary, value binary"
"""What Kafka's sink takes."""
_STATE = "version int, body binary"
"""Only renames are possible later: hence a version and bytes."""

Frames = Iterator[pd.DataFrame]
encode = msgspec.json.Encoder().encode


def decide(
    records: DataFrame, partitions: int, topics: Topics, restore: Restore, failures: Accumulator[int]
) -> DataFrame:
    """Run the machines over records of the control topics; return what to publish: topic, key, value.

    Args:
        records: topic, partition, offset, timestamp_ms, key, value.
        partitions: of each control topic.
        topics: where decisions go.
        restore: what shards without a state start from.
        failures: counts the events that the machine itself failed at; those of a repeated batch again.
    """
    function: Callable[[tuple[str, int], Frames, GroupState], Frames] = partial(
        run_shard, partitions, topics, restore, failures
    )
    return records.groupBy("topic", "partition").applyInPandasWithState(
        function, PUBLISHED, _STATE, "append", GroupStateTimeout.NoTimeout
    )


def run_shard(
    partitions: int,
    topics: Topics,
    restore: Restore,
    failures: Accumulator[int],
    at: tuple[str, int],
    frames: Frames,
    state: GroupState,
) -> Frames:
    """Run one shard's records of one batch; Spark calls it with the shard's topic and partition."""
    topic, partition = at
    version, body = state.get if state.exists else (VERSION, restore.body_of(topic, int(partition)))
    if version != VERSION:
        raise RuntimeError(f"the checkpoint of {topic}-{partition} has version {version}; this program has {VERSION}")
    quiet_until = restore.quiet_until(topic, int(partition))
    shard = Shard(topic, int(partition), partitions, body, era=restore.era, quiet_until=quiet_until)
    published: list[tuple[str, bytes, bytes]] = []
    for record in _in_order(topic, int(partition), frames):
        if record.offset <= shard.offset:
            continue  # the snapshot that the shard started from has it
        for decision in shard.apply(record):
            if isinstance(decision, Rejected) and decision.rule == "internal":
                failures.add(1)
            if not shard.is_quiet:
                published += _addressed(decision, topics, shard.name)
    # Ticks move the clock, so there is something to keep after every batch.
    state.update((VERSION, shard.body()))
    if published:
        yield pd.DataFrame(published, columns=["topic", "key", "value"])


def _in_order(topic: str, partition: int, frames: Frames) -> Iterator[Record]:
    """Yield a shard's records by offset; Spark hands them over in pieces and in no order."""
    rows: list[tuple[int, int, bytes | None, bytes | None]] = []
    for frame in frames:
        rows += zip(frame["offset"], frame["timestamp_ms"], frame["key"], frame["value"], strict=True)
    rows.sort(key=lambda row: row[0])
    for offset, timestamp_ms, key, value in rows:
        yield Record(topic, partition, int(offset), int(timestamp_ms), key, value)


def _addressed(decision: AnyDecision, topics: Topics, shard: str) -> Iterator[tuple[str, bytes, bytes]]:
    """Address a decision: to the record, and to the inbox of the client that must hear it."""
    value = encode(decision)
    # A decision about no group is keyed by its shard: with a null key, a repeated batch would choose another partition,
    # and readers could not tell that they have seen it.
    key = decision.queue.key if isinstance(decision, Wake) else decision.group_id or shard
    yield topics.decisions, key.encode(), value
    if isinstance(decision, TO_A_CLIENT) and decision.client_id:
        yield topics.inbox, decision.client_id.encode(), value
