"""The adapter between Spark and the state machines: it receives a shard's records and returns its decisions.

The state is grouped by (topic, partition), so a batch calls Python once per shard, however many groups the shard has; a
call per group would cost 0.7 ms each. Spark's timers are not used: time is an event.
"""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark import Accumulator, AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from wakeroll.connection import Topics
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.decision_sizes import bounded
from wakeroll_model.decisions import AnyDecision, Rejected, Wake, recipient_of
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE
from wakeroll_model.signing import Keys
from wakeroll_pipeline.recovery.initial_state import Restore, name_of, other_version
from wakeroll_pipeline.recovery.packed_states import pack, unpack

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = "topic string, key binary, value binary"
"""Schema of the rows for Kafka's sink."""
_RECORD = Record.__struct_fields__
"""Columns of a record, in the order of its fields."""
_STATE = "version int, body binary"
"""Schema of the state: a version and bytes, because Spark allows only renames later."""
_AT_ONCE = 16 * 1024 * 1024
"""Number of bytes of decisions that are passed to Spark together."""

Frames = Iterator["pd.DataFrame"]


class _Newest(AccumulatorParam[dict[str, Any]]):
    """An accumulator of values by name, which keeps the newest value of each."""

    def zero(self, _value: dict[str, Any]) -> dict[str, Any]:
        return {}

    def addInPlace(self, known: dict[str, Any], news: dict[str, Any]) -> dict[str, Any]:  # noqa: N802
        known.update(news)
        return known


class _Sums(AccumulatorParam[dict[str, int]]):
    """An accumulator of counters by name."""

    def zero(self, _value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, known: dict[str, int], news: dict[str, int]) -> dict[str, int]:  # noqa: N802
        for name, count in news.items():
            known[name] = known.get(name, 0) + count
        return known


class Counts(NamedTuple):
    """Figures that the shards of a query report to its process; a repeated batch reports them again."""

    failures: Accumulator[int]
    """Number of events for which the state machine itself failed."""
    bytes: Accumulator[dict[str, int]]
    """Shard, like ``groups-3`` -> size of its state after its last batch, in bytes."""
    rejections: Accumulator[dict[str, int]]
    """Rule -> number of records that were rejected by it."""
    marks: Accumulator[dict[str, tuple[int, int]]]
    """``topic-partition`` -> offset and log time (epoch ms) of the last record that its shard has applied."""
    levels: Accumulator[dict[str, int]]
    """Shard, like ``groups-3`` -> its feature level after its last batch."""
    eras: Accumulator[dict[str, int]]
    """Shard, like ``groups-3`` -> its era after its last batch."""
    used: Accumulator[dict[str, float]]
    """Shard, like ``groups-3`` -> largest share of a limit that it uses after its last batch, 0 to 1."""

    @classmethod
    def start(cls, spark: SparkSession) -> "Counts":
        """Create the accumulators."""
        context = spark.sparkContext
        return cls(
            context.accumulator(0),
            context.accumulator({}, _Newest()),
            context.accumulator({}, _Sums()),
            context.accumulator({}, _Newest()),
            context.accumulator({}, _Newest()),
            context.accumulator({}, _Newest()),
            context.accumulator({}, _Newest()),
        )


def decide(
    records: DataFrame, partitions: int, topics: Topics, restore: Restore, keys: Keys, counts: Counts
) -> DataFrame:
    """Run the state machines over records of the control topics; return rows to publish: topic, key, value.

    Args:
        records: topic, partition, offset, timestamp_ms, key, value.
        partitions: number of partitions of each control topic.
        topics: names of the control plane's topics.
        restore: initial states of shards without a state.
        keys: verify signed records; they are sent to the executors with the function, and never stored.
        counts: accumulators for the shards' reports.
    """
    function: Callable[[tuple[str, int], Frames, GroupState], Frames] = partial(
        _run_in_worker, partitions, topics, restore, keys, counts
    )
    return records.groupBy("topic", "partition").applyInPandasWithState(
        function, PUBLISHED, _STATE, "append", GroupStateTimeout.NoTimeout
    )


def with_writer(decisions: DataFrame, writer: str) -> DataFrame:
    """Add the name of this process to rows to publish, as a header: every coordinator publishes the same values."""
    header = f.struct(f.lit(WRITER_HEADER).alias("key"), f.lit(writer).cast("binary").alias("value"))
    return decisions.withColumn("headers", f.array(header))


@cache
def freeze_imports() -> None:
    """Exclude imported objects of this process from garbage collection; only once, and only in Spark's workers.

    Spark's worker runs a collection after each task. With the 90,000 objects of its libraries, that takes 25 to 45 ms
    of a core, which is more than the rest of its work in a small batch.
    """
    gc.collect()
    gc.freeze()


def _run_in_worker(*arguments: Any) -> Frames:
    """Run one shard's records of one batch, in a worker; the arguments are those of `run_shard`."""
    freeze_imports()
    return run_shard(*arguments)


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
    """Run one shard's records of one batch; `at`: the shard's topic and partition."""
    topic, partition = at[0], int(at[1])
    shard = _shard(topic, partition, partitions, restore, keys, state)
    begun = restore.beginning(topic, partition)
    published_before = begun.published_seq if begun.era == shard.era else 0
    published: list[tuple[str, bytes, bytes]] = []
    rejections: Counter[str] = Counter()
    waiting = 0
    mark: tuple[int, int] | None = None
    for record in _in_order(frames):
        mark = (record.offset, record.timestamp_ms)
        for made in shard.apply(record):
            decision, value = bounded(made)
            if isinstance(decision, Rejected):
                rejections[decision.rule] += 1
                if decision.rule == "internal":
                    counts.failures.add(1)
            if decision.seq <= published_before:
                continue
            published += addressed(decision, value, topics, shard.name)
            waiting += len(value)
        if waiting >= _AT_ONCE:
            yield _frame(published)
            published, waiting = [], 0
    # Ticks move the clock, so the state changes in every batch.
    body = shard.body()
    state.update((shard.version, pack(body, shard.version)))
    counts.bytes.add({shard.name: len(body)})
    counts.levels.add({shard.name: shard.level})
    counts.eras.add({shard.name: shard.era})
    counts.used.add({shard.name: shard.used})
    if mark is not None:
        counts.marks.add({name_of((topic, partition)): mark})
    if rejections:
        counts.rejections.add(dict(rejections))
    if published:
        yield _frame(published)


def _shard(topic: str, partition: int, partitions: int, restore: Restore, keys: Keys, state: GroupState) -> Shard:
    """Create the shard from the state of its last batch, or else from its initial state."""
    if partition >= partitions:
        raise RuntimeError(
            f"{topic} has a partition {partition}, but this coordinator was started with {partitions} partitions: "
            "their number has grown; set `partitions` to it, and start the coordinator again"
        )
    if not state.exists:
        its = restore.beginning(topic, partition)
        return Shard(
            topic,
            partition,
            partitions,
            its.body,
            era=its.era,
            quiet_until=its.quiet_until,
            level=its.level,
            signatures=keys,
        )
    version, stored = state.get
    if version not in READABLE:
        raise RuntimeError(f"the checkpoint of {topic}-{partition} {other_version(version)}")
    return Shard(topic, partition, partitions, unpack(stored), signatures=keys)


def _frame(published: list[tuple[str, bytes, bytes]]) -> "pd.DataFrame":
    import pandas as pd  # here, so that the driver can import it while its JVM starts

    return pd.DataFrame(published, columns=["topic", "key", "value"])


def _in_order(frames: Frames) -> list[Record]:
    """Return a shard's records by offset; Spark passes them in chunks and without order."""
    # `tolist`: to iterate over a column of pandas costs three times as much.
    records = [one for frame in frames for one in map(Record, *(frame[name].tolist() for name in _RECORD))]
    records.sort(key=attrgetter("offset"))
    return records


def addressed(decision: AnyDecision, value: bytes, topics: Topics, shard: str) -> Iterator[tuple[str, bytes, bytes]]:
    """Yield the rows for a decision, encoded as `value`: for the decisions topic, and for the inbox of its client."""
    # A decision without a group has its shard as the key: with a null key, a repeated batch would use another
    # partition, and readers could not recognize the repetition.
    key = decision.queue.key if isinstance(decision, Wake) else decision.group_id or shard
    yield topics.decisions, key.encode(), value
    if client_id := recipient_of(decision):
        yield topics.inbox, client_id.encode(), value
