"""Retention: which rows are deleted, and which are kept so that replays have a starting snapshot.

- `events`: rows up to the starting snapshot of a replay are deleted.  Without such a snapshot nothing is deleted.
- `decisions`: a row is deleted with the record that caused it, unless it is the latest decision before that snapshot
  about a queue, offset, member or group that still exists.  So the tables show the state at the snapshot, and every
  change since.
- `assignments` and `offsets`: a row is deleted with its decision.
- `divergences`: no row is deleted; there are few.
- `chain`: no line is deleted.
- `snapshots`: rows before the starting snapshot are deleted.  Of those older than `keep_snapshots_ms`, the last of each
  day is kept, the last of each `SNAPSHOT_SPAN` records, the snapshot with which an era began, and the newest
  `keep_snapshots` of each shard.  A damaged snapshot is no starting snapshot: the records before it are still needed.

The highest row of a stream is never deleted: it shows up to which position a table is complete.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import or_

from delta.tables import DeltaTable
from msgspec import Struct
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from wakeroll_model import config
from wakeroll_model.decision_order import ORDER
from wakeroll_model.decisions import Handover, Membership, Offset, Rebalance
from wakeroll_model.rows import (
    ASSIGNMENTS,
    CHAIN,
    DECISIONS,
    DIVERGENCES,
    EVENTS,
    OFFSETS,
    SNAPSHOTS,
    SnapshotRow,
    Table,
)
from wakeroll_model.shard_state import READABLE
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.row_hashes import stream_of
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, key_of, read_snapshots
from wakeroll_pipeline.ledger.tables import path_of, with_era
from wakeroll_pipeline.storage.place import Folder

DAY_MS = 24 * 3_600_000
_PRESENT = ("joined", "resubscribed", "described", "replaced")
"""Values of the last `change` of a client that is a member; ledgers before protocol version 2 have `replaced`."""
_GONE = ("left", "died", "expired", "gone", "kicked")
"""Its values if the client is none. Other changes, such as `conflict` or `leaving`, do not show whether it is."""


class Past(Struct, frozen=True):
    """Bounds of the rows that are old enough to delete."""

    begins: Mapping[tuple[str, int], int]
    """(topic, partition) of a control topic -> offset of the snapshot after which its archived log will begin."""
    events_before_ms: int
    """Log time (epoch ms) before which events are old; always a midnight (UTC), so that a file is rewritten at
    most once a day."""
    decisions_before_ms: int
    """Log time (epoch ms) before which decisions are old; always a midnight (UTC)."""
    keep_snapshots_ms: int = config.KEEP_SNAPSHOTS_MS
    """Age below which all snapshots are kept (ms)."""
    keep_snapshots: int = config.KEEP_SNAPSHOTS
    """Newest snapshots of each shard that are kept, however old they are."""


def past_of(
    spark: SparkSession,
    warehouse: Folder,
    now_ms: int,
    keep_events_ms: int,
    keep_decisions_ms: int,
    *,
    keep_snapshots_ms: int = config.KEEP_SNAPSHOTS_MS,
    keep_snapshots: int = config.KEEP_SNAPSHOTS,
) -> Past:
    """Return the bounds of old rows.

    Args:
        spark: a session.
        warehouse: folder of the tables.
        now_ms: this machine's time (epoch ms); rows with a later log time are not old.
        keep_events_ms: minimum retention of `events` (ms).
        keep_decisions_ms: minimum retention of the other tables (ms); at least `keep_events_ms` is used.
        keep_snapshots_ms: age below which all snapshots are kept (ms).
        keep_snapshots: newest snapshots of each shard that are kept, however old they are.
    """
    events_before_ms = kept_from(EVENTS, now_ms, keep_events_ms, keep_decisions_ms)
    decisions_before_ms = kept_from(DECISIONS, now_ms, keep_events_ms, keep_decisions_ms)
    old = (
        _read(spark, warehouse, EVENTS)
        .where(f.col(EVENTS.at) < events_before_ms)
        .groupBy(*EVENTS.stream)
        .agg(f.max("offset").alias("old_offset"))
    )
    snapshots = _read(spark, warehouse, SNAPSHOTS).where(f.col("version").between(READABLE[0], READABLE[-1]))
    # The age is that of the records, because a shard's clock lags behind them by all the time that was dark.  The
    # newest snapshot is never chosen: then records follow the chosen one, among them the highest of the stream.
    newest = f.max("offset").over(Window.partitionBy(*SNAPSHOTS.stream))
    rows = (
        snapshots.select("topic", "partition", "era", "offset", newest.alias("newest"))
        .where(f.col("offset") < f.col("newest"))
        .join(old, on=["topic", "partition"], how="inner")
        .where(f.col("offset") <= f.col("old_offset"))
        .select(*SnapshotKey._fields)
        .distinct()
        .collect()
    )
    return Past(
        begins=_begins(warehouse, [SnapshotKey(*row) for row in rows]),
        events_before_ms=events_before_ms,
        decisions_before_ms=decisions_before_ms,
        keep_snapshots_ms=keep_snapshots_ms,
        keep_snapshots=keep_snapshots,
    )


def kept_from(table: Table, now_ms: int, keep_events_ms: int, keep_decisions_ms: int) -> int:
    """Return the midnight (UTC, epoch ms) before which rows of `events`, or of another table, are old.

    Args:
        table: the table.
        now_ms: as for `past_of`.
        keep_events_ms: as for `past_of`.
        keep_decisions_ms: as for `past_of`.
    """
    keep_ms = keep_events_ms if table is EVENTS else max(keep_events_ms, keep_decisions_ms)
    return (now_ms - keep_ms) // DAY_MS * DAY_MS


def _begins(warehouse: Folder, old: Sequence[SnapshotKey]) -> dict[tuple[str, int], int]:
    """Return the place of each shard with old snapshots -> the highest offset of one that is not damaged."""
    if not old:
        return {}

    def choose(damaged: Set[SnapshotKey]) -> list[SnapshotRow]:
        highest: dict[tuple[str, int], SnapshotKey] = {}
        for key in sorted({*old} - damaged, key=lambda one: (one.offset, one.era)):
            highest[key.place] = key
        return read_snapshots(ledger, list(highest.values()))

    # Not with Spark, which would copy each state several times in the driver's heap.
    with duck_ledger(warehouse) as ledger:
        return {key.place: key.offset for key in map(key_of, intact(choose))}


Rewriting = Callable[[Table, Mapping[str, int]], AbstractContextManager[object]]
"""Surrounds a deletion; gets the table, and the highest position of each stream that rows are deleted of."""


def forget(
    spark: SparkSession,
    warehouse: Folder,
    table: Table,
    past: Past,
    rewriting: Rewriting = lambda _table, _ends: nullcontext(),
) -> None:
    """Delete the old rows of one table in one commit; make no commit if there are none.

    Call it in the order of `wakeroll_model.rows.TABLES`: records before their decisions, decisions before their rows.
    Then a query between two calls, or after a crash, may find more rows than needed, but never fewer.
    """
    if table in (CHAIN, DIVERGENCES) or (not past.begins and table is not SNAPSHOTS):
        return
    if table is EVENTS:
        old = _up_to(past, "topic", "partition", "offset")
        if _read(spark, warehouse, EVENTS).where(old).isEmpty():
            return
        begins = {
            stream_of(EVENTS, {"topic": topic, "partition": partition}): offset
            for (topic, partition), offset in past.begins.items()
        }
        with rewriting(EVENTS, begins):
            DeltaTable.forPath(spark, path_of(warehouse, EVENTS).for_spark()).delete(old)
        return
    gone = {
        DECISIONS.name: _decisions,
        ASSIGNMENTS.name: _undecided,
        OFFSETS.name: _undecided,
        SNAPSHOTS.name: _snapshots,
    }[table.name](spark, warehouse, table, past)
    keys = gone.select(*_columns(table)).persist()
    try:
        if keys.isEmpty():
            return
        same = [f.col(f"kept.{name}") == f.col(f"gone.{name}") for name in table.key]
        if table is not SNAPSHOTS:
            # Redundant, but it lets Delta skip files.
            same.append(f.col(f"kept.{table.at}") < past.decisions_before_ms)
        streams = [name for name in _columns(table) if name != table.position]
        ends = keys.groupBy(*streams).agg(f.max(table.position).alias("last")).collect()
        kept = DeltaTable.forPath(spark, path_of(warehouse, table).for_spark()).alias("kept")
        with rewriting(table, {stream_of(table, row.asDict()): row["last"] for row in ends}):
            kept.merge(keys.alias("gone"), reduce(Column.__and__, same)).whenMatchedDelete().execute()
    finally:
        keys.unpersist()


def _decisions(spark: SparkSession, warehouse: Folder, table: Table, past: Past) -> DataFrame:
    """Return the decisions to delete: their records are deleted, and a newer decision about the subject exists."""
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
    coming_or_going = f.when(is_membership & change.isin(*_PRESENT, *_GONE), f.col("order"))
    its_last = f.max_by(change, coming_or_going).over(Window.partitionBy("group_id", "client_id"))
    forgotten = f.max(f.when(change == "forgotten", f.col("order"))).over(Window.partitionBy("group_id"))
    return said.select(
        *_columns(table),
        (
            kind.isin([_tag(one) for one in (Membership, Rebalance, Handover, Offset)])
            & (f.row_number().over(subject) == 1)
            & ~(client.isNotNull() & f.coalesce(~its_last.isin(*_PRESENT), f.lit(False)))
            & f.coalesce(f.col("order") > forgotten, f.lit(True))
        ).alias("is_last_word"),
        (f.col("seq") == f.max("seq").over(Window.partitionBy(*table.stream, "kind"))).alias("is_highest"),
    ).where(~f.col("is_last_word") & ~f.col("is_highest"))


def _undecided(spark: SparkSession, warehouse: Folder, table: Table, past: Past) -> DataFrame:
    """Return the rows whose decisions are deleted."""
    rows = _read(spark, warehouse, table).where(f.col(table.at) < past.decisions_before_ms)
    # A row may be slightly older than its decision.
    decided_before_ms = past.decisions_before_ms + DAY_MS
    decisions = _read(spark, warehouse, DECISIONS).where(f.col(DECISIONS.at) < decided_before_ms).select(*DECISIONS.key)
    highest = f.max(table.position).over(Window.partitionBy(*table.stream))
    return (
        rows.withColumn("highest", highest)
        .where(f.col(table.position) < f.col("highest"))
        .join(decisions, on=[*DECISIONS.key], how="left_anti")
    )


def _snapshots(spark: SparkSession, warehouse: Folder, table: Table, past: Past) -> DataFrame:
    """Return the snapshots to delete: no replay of the archived log needs them, or another snapshot is near enough."""
    shard = Window.partitionBy(*table.stream)
    day = f.floor(f.col(table.at) / DAY_MS)
    span = f.floor(f.col("offset") / config.SNAPSHOT_SPAN)
    last_of_day, last_of_span = (
        f.max("offset").over(Window.partitionBy(*table.stream, "era", "version", part)) for part in (day, span)
    )
    first_of_era = f.min("offset").over(Window.partitionBy(*table.stream, "era", "version"))
    begin = reduce(
        lambda found, item: f.when(_is_at(item[0], "topic", "partition"), item[1]).otherwise(found),
        past.begins.items(),
        f.lit(-1),
    )
    return (
        _read(spark, warehouse, table)
        .select(
            *_columns(table),
            (
                (f.col(table.at) < f.max(table.at).over(shard) - past.keep_snapshots_ms)
                & (f.dense_rank().over(shard.orderBy(f.desc("era"), f.desc("offset"))) > past.keep_snapshots)
            ).alias("is_old"),
            f.col("offset").isin(last_of_day, last_of_span).alias("is_last"),
            ((f.col("era") > 1) & (f.col("offset") == first_of_era)).alias("is_begin_of_era"),
            (f.col("offset") < begin).alias("is_before"),
            (f.col("offset") == begin).alias("is_begin"),
        )
        .where(
            f.col("is_before") | (f.col("is_old") & ~f.col("is_last") & ~f.col("is_begin") & ~f.col("is_begin_of_era"))
        )
    )


def _columns(table: Table) -> list[str]:
    """Return the columns that identify a row and its stream."""
    return list(dict.fromkeys((*table.key, *table.stream)))


def _up_to(past: Past, topic: str, partition: str, offset: str) -> Column:
    """Return the condition that a record is before the beginning of its archived log."""
    return reduce(
        or_, (_is_at(place, topic, partition) & (f.col(offset) <= begin) for place, begin in past.begins.items())
    )


def _is_at(place: tuple[str, int], topic: str, partition: str) -> Column:
    return (f.col(topic) == place[0]) & (f.col(partition) == place[1])


def _tag(kind: type[Struct]) -> str:
    return str(kind.__struct_config__.tag)


def _read(spark: SparkSession, warehouse: Folder, table: Table) -> DataFrame:
    return spark.read.format("delta").load(path_of(warehouse, table).for_spark())
