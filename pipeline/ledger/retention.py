"""What goes when it is old, and what stays all the same: a replay has a beginning, and views know of whom they tell.

- `events` go up to a snapshot that a replay can begin with.  Where there is none, nothing goes.
- `decisions` go with the record that caused them, but for the last words: what was said last, before that snapshot,
  about each queue, offset, member and group that is still there.  So the state of then is known, and all since.
- `assignments` and `offsets` go with their decisions.
- `snapshots` of before that one go; of those of more than a day ago, the last of each day stays, and what an era began
  with.

The highest row of a stream never goes: it says how far a table has come.
"""

from collections.abc import Mapping
from functools import reduce
from operator import or_
from pathlib import Path

from delta.tables import DeltaTable
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from model import config
from model.decision_order import ORDER
from model.decisions import Handover, Membership, Offset, Rebalance
from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, Table
from model.shard import VERSION
from pipeline.ledger.tables import path_of, with_era

DAY_MS = 24 * 3_600_000
_PRESENT = ("joined", "resubscribed", "replaced")
"""The last change of a client that is a member; `replaced` stands in ledgers of before protocol version 2."""


class Past(Struct, frozen=True):
    """What is old enough to go."""

    begins: Mapping[tuple[str, int], int]
    """(topic, partition) of a control topic -> offset of the snapshot that its archived log begins behind."""
    events_before_ms: int
    """Log time; a whole day's end, so that a file is rewritten once a day at most."""
    decisions_before_ms: int


def past_of(spark: SparkSession, warehouse: Path, now_ms: int, keep_events_ms: int, keep_decisions_ms: int) -> Past:
    """Find what is old.

    Args:
        spark: a session.
        warehouse: folder of the tables.
        now_ms: this machine's time; what the log is ahead of it is young.
        keep_events_ms: how long `events` are kept at least.
        keep_decisions_ms: how long the other tables are; as long as the events, if that is longer.
    """
    events_before_ms, decisions_before_ms = (
        (now_ms - keep_ms) // DAY_MS * DAY_MS for keep_ms in (keep_events_ms, max(keep_events_ms, keep_decisions_ms))
    )
    old = (
        _read(spark, warehouse, EVENTS)
        .where(f.col(EVENTS.at) < events_before_ms)
        .groupBy(*EVENTS.stream)
        .agg(f.max("offset").alias("old_offset"))
    )
    snapshots = _read(spark, warehouse, SNAPSHOTS).where(f.col("version") == VERSION)
    # By the records' own time: a shard's clock is behind it by all the time that was dark.  Not the newest snapshot:
    # there are records behind this one then, the highest of the stream among them.
    newest = f.max("offset").over(Window.partitionBy(*SNAPSHOTS.stream))
    rows = (
        snapshots.select("topic", "partition", "offset", newest.alias("newest"))
        .where(f.col("offset") < f.col("newest"))
        .join(old, on=["topic", "partition"], how="inner")
        .where(f.col("offset") <= f.col("old_offset"))
        .groupBy("topic", "partition")
        .agg(f.max("offset").alias("offset"))
        .collect()
    )
    begins = {(row.topic, row.partition): row.offset for row in rows}
    return Past(begins=begins, events_before_ms=events_before_ms, decisions_before_ms=decisions_before_ms)


def forget(spark: SparkSession, warehouse: Path, table: Table, past: Past) -> None:
    """Delete what is old of one table, in one commit; nothing, where nothing is.

    In the order of `model.rows.TABLES`, so that no decision goes before its record, and no row before its decision:
    whoever asks in between, or after a crash, finds more than he must, not less.
    """
    if not past.begins and table is not SNAPSHOTS:
        return
    if table is EVENTS:
        DeltaTable.forPath(spark, str(path_of(warehouse, EVENTS))).delete(_up_to(past, "topic", "partition", "offset"))
        return
    gone = {
        DECISIONS.name: _decisions,
        ASSIGNMENTS.name: _undecided,
        OFFSETS.name: _undecided,
        SNAPSHOTS.name: _snapshots,
    }[table.name](spark, warehouse, table, past)
    keys = gone.select(*table.key).persist()
    try:
        if keys.isEmpty():
            return
        same = [f.col(f"kept.{name}") == f.col(f"gone.{name}") for name in table.key]
        if table is not SNAPSHOTS:
            # Says nothing new, but which files need not be read.
            same.append(f.col(f"kept.{table.at}") < past.decisions_before_ms)
        kept = DeltaTable.forPath(spark, str(path_of(warehouse, table))).alias("kept")
        kept.merge(keys.alias("gone"), reduce(Column.__and__, same)).whenMatchedDelete().execute()
    finally:
        keys.unpersist()


def _decisions(spark: SparkSession, warehouse: Path, table: Table, past: Past) -> DataFrame:
    """Return the decisions that go: their records are gone, and something newer was said."""
    is_past = _up_to(past, "cause.topic", "cause.partition", "cause.offset")
    old = _read(spark, warehouse, table).where((f.col(table.at) < past.decisions_before_ms) & is_past)
    names = "change string, strategy string, mode string, queue struct<topic: string, broker: string, queue_id: int>"
    said = with_era(old).withColumn("said", f.from_json("json", names)).withColumn("order", f.struct(*ORDER))
    kind, change = f.col("kind"), f.col("said.change")
    is_membership = kind == _tag(Membership)
    is_own = (kind == _tag(Offset)) & (f.col("said.mode") == "broadcasting")
    client = f.when(is_membership | is_own, f.col("client_id"))
    subject = Window.partitionBy(
        "kind", "group_id", client, f.to_json("said.queue"), change, f.col("said.strategy") == ""
    ).orderBy(f.desc("order"))
    coming_or_going = f.when(is_membership & ~change.isin("conflict", "agreed"), f.col("order"))
    its_last = f.max_by(change, coming_or_going).over(Window.partitionBy("group_id", "client_id"))
    forgotten = f.max(f.when(change == "forgotten", f.col("order"))).over(Window.partitionBy("group_id"))
    return said.select(
        *table.key,
        (
            kind.isin([_tag(one) for one in (Membership, Rebalance, Handover, Offset)])
            & (f.row_number().over(subject) == 1)
            & ~(client.isNotNull() & f.coalesce(~its_last.isin(*_PRESENT), f.lit(False)))
            & f.coalesce(f.col("order") > forgotten, f.lit(True))
        ).alias("is_last_word"),
        (f.col("seq") == f.max("seq").over(Window.partitionBy(*table.stream, "kind"))).alias("is_highest"),
    ).where(~f.col("is_last_word") & ~f.col("is_highest"))


def _undecided(spark: SparkSession, warehouse: Path, table: Table, past: Past) -> DataFrame:
    """Return the rows whose decisions are gone."""
    rows = _read(spark, warehouse, table).where(f.col(table.at) < past.decisions_before_ms)
    # A row's time may be somewhat before its decision's.
    decided_before_ms = past.decisions_before_ms + DAY_MS
    decisions = _read(spark, warehouse, DECISIONS).where(f.col(DECISIONS.at) < decided_before_ms).select(*DECISIONS.key)
    highest = f.max(table.position).over(Window.partitionBy(*table.stream))
    return (
        rows.withColumn("highest", highest)
        .where(f.col(table.position) < f.col("highest"))
        .join(decisions, on=[*DECISIONS.key], how="left_anti")
    )


def _snapshots(spark: SparkSession, warehouse: Path, table: Table, past: Past) -> DataFrame:
    """Return the snapshots that no replay of the archived log needs, and those that are near enough to another one."""
    shard = Window.partitionBy(*table.stream)
    day = f.floor(f.col(table.at) / DAY_MS)
    last_of_day = f.max("offset").over(Window.partitionBy(*table.stream, "era", "version", day))
    first_of_era = f.min("offset").over(Window.partitionBy(*table.stream, "era", "version"))
    begin = reduce(
        lambda found, item: f.when(_is_at(item[0], "topic", "partition"), item[1]).otherwise(found),
        past.begins.items(),
        f.lit(-1),
    )
    return (
        _read(spark, warehouse, table)
        .select(
            *table.key,
            (f.col(table.at) < f.max(table.at).over(shard) - config.KEEP_SNAPSHOTS_MS).alias("is_old"),
            (f.col("offset") == last_of_day).alias("is_last_of_day"),
            ((f.col("era") > 1) & (f.col("offset") == first_of_era)).alias("is_begin_of_era"),
            (f.col("offset") < begin).alias("is_before"),
            (f.col("offset") == begin).alias("is_begin"),
        )
        .where(
            f.col("is_before")
            | (f.col("is_old") & ~f.col("is_last_of_day") & ~f.col("is_begin") & ~f.col("is_begin_of_era"))
        )
    )


def _up_to(past: Past, topic: str, partition: str, offset: str) -> Column:
    """Condition: a record stands before the beginning of its archived log."""
    return reduce(
        or_, (_is_at(place, topic, partition) & (f.col(offset) <= begin) for place, begin in past.begins.items())
    )


def _is_at(place: tuple[str, int], topic: str, partition: str) -> Column:
    return (f.col(topic) == place[0]) & (f.col(partition) == place[1])


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _read(spark: SparkSession, warehouse: Path, table: Table) -> DataFrame:
    return spark.read.format("delta").load(str(path_of(warehouse, table)))
