"""Replay: what the tables say was decided, decided again from the archived log, and compared byte for byte."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import msgspec
import pandas as pd
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from model.decision_order import era_of
from model.partitioner import ControlPartition
from model.records import Record
from model.replay import encode_decision
from pipeline.ledger.archived_log import (
    Period,
    Replayable,
    Stretch,
    Unknown,
    cut_logs,
    in_order,
    place_of,
    records_of,
    stretches_of,
)
from wakeroll.errors import InvalidUsage
from wakeroll.reset import EpochMs

SHOWN = 5
"""Differences of a shard that are kept: what follows from the first is seldom news."""
_BATCH = 10_000
"""Records after which a shard is closed, as after a batch of `coordinate`: until then it remembers its every step."""


class Difference(Struct, frozen=True):
    """A decision that is not the same."""

    seq: int
    recorded: str | None
    """As the table has it; None: it is not there."""
    decided: str | None
    """As it is decided now; None: nothing is."""


class Checked(Struct, frozen=True, kw_only=True):
    """What came of the replay of one shard, in one era."""

    shard: str
    """With its era, as the decisions have it: ``groups-3.1``."""
    after: int
    """Offset of the snapshot that it began with; -1: it began with nothing."""
    events: int
    """Records of the period that were decided again."""
    compared: int
    """Decisions of the period that both have, or only one of them."""
    not_recorded: int
    """Decisions behind the last one in the table: nobody had made them, or they are not written yet."""
    differences: int
    first: list[Difference]
    """Of the differences, at most `SHOWN`."""
    unknown: int = 0
    """Decisions of the table that cannot be made again ..."""
    why: str = ""
    """... and what is missing for it."""


def replay_all(spark: SparkSession, partitions: int, period: Period) -> list[Checked]:
    """Decide again, by Spark, all that was decided in a period; each shard begins with the nearest snapshot before it.

    Args:
        spark: with the tables' views.
        partitions: of each control topic.
        period: of log time.

    Returns:
        What came of it, by shard and era.

    Raises:
        InvalidUsage: nothing was recorded in this period, or the tables are those of another number of partitions.
    """
    asked = _asked(spark, period)
    highest = max(partition for _, partition in asked)
    if highest >= partitions:
        raise InvalidUsage(
            f"the tables have records of partition {highest}, this deployment has {partitions} partitions; "
            "give the number that it was made with, by WAKEROLL_PARTITIONS or --config"
        )
    found = stretches_of(spark, asked)
    checked = (
        records_of(spark, found.stretches)
        .groupBy("topic", "partition")
        .cogroup(_recorded(spark, period).groupBy("topic", "partition"))
        .applyInPandas(partial(check_shard, found, partitions, period), "checked binary")
        .collect()
    )
    checks = (msgspec.json.decode(row.checked, type=Checked) for row in checked)
    return sorted(checks, key=lambda one: (one.shard.rpartition(".")[0], era_of(one.shard), one.after))


def replay_group(spark: SparkSession, partitions: int, period: Period, group_id: str) -> list[Checked]:
    """Decide again, in this process, what was decided about a group in a period; its waits are not among it.

    All of its shard is decided again, for decisions are numbered by shard; only those about the group are compared.

    Raises:
        InvalidUsage: nothing was recorded in this period, or the group's shard is not to be found.
    """
    found = stretches_of(spark, _asked(spark, period, place_of(spark, group_id, partitions)))
    rows = _recorded(spark, period).where(f.col("group_id") == group_id).collect()
    recorded = [Recorded(row.shard, row.seq, row.offset, row.json) for row in rows]
    checks = [
        check(stretch, partitions, in_order(records_of(spark, [stretch])), _of(stretch, recorded), period, group_id)
        for stretch in found.stretches
    ]
    return [*checks, *_unknown(found, recorded)]


def check(
    stretch: Stretch,
    partitions: int,
    records: Iterable[Record],
    recorded: Mapping[int, str],
    period: Period,
    group_id: str | None = None,
) -> Checked:
    """Decide about a stretch again, and compare.

    Args:
        stretch: what to decide about, and what to begin with.
        partitions: of the control topic.
        records: of its shard, by offset, from the one behind the beginning to the last one; others are skipped.
        recorded: seq -> the decision as the table has it, of this stretch and of the period.
        period: which decisions to compare.
        group_id: only decisions about this group; None: about everybody.
    """
    shard = stretch.shard(partitions)
    left = dict(recorded)
    events = compared = not_recorded = 0
    differences: list[Difference] = []
    for record in records:
        if not stretch.after < record.offset <= stretch.last:
            continue
        decisions = shard.apply(record)
        if record.offset % _BATCH == 0:
            shard.body()
        if record.offset < stretch.first or not period.has(record.timestamp_ms):
            continue
        events += 1
        for decision in decisions:
            if group_id not in (None, decision.group_id):
                continue
            was = left.pop(decision.seq, None)
            if was is None and decision.seq > stretch.last_seq:
                not_recorded += 1
                continue
            compared += 1
            now = encode_decision(decision).decode()
            if now != was:
                differences.append(Difference(decision.seq, was, now))
    differences += [Difference(seq, was, None) for seq, was in left.items()]
    return Checked(
        shard=stretch.shard_name,
        after=stretch.after,
        events=events,
        compared=compared + len(left),
        not_recorded=not_recorded,
        differences=len(differences),
        first=sorted(differences, key=lambda one: one.seq)[:SHOWN],
    )


def check_shard(
    found: Replayable,
    partitions: int,
    period: Period,
    place: tuple[object, ...],
    records: pd.DataFrame,
    recorded: pd.DataFrame,
) -> pd.DataFrame:
    """Check one shard; Spark calls it with its topic and partition."""
    records = records.sort_values("offset")
    columns = (recorded[name] for name in ("shard", "seq", "offset", "json"))
    rows = [Recorded(shard, int(seq), int(offset), json) for shard, seq, offset, json in zip(*columns, strict=True)]
    mine = [stretch for stretch in found.stretches if (stretch.topic, stretch.partition) == place]
    checks = [check(stretch, partitions, _records(records), _of(stretch, rows), period) for stretch in mine]
    checks += _unknown(found, rows)
    return pd.DataFrame({"checked": [msgspec.json.encode(one) for one in checks]})


class Recorded(NamedTuple):
    """A decision as the table has it."""

    shard: str
    """With its era."""
    seq: int
    offset: int
    """Of the record that it follows from."""
    json: str


def _of(stretch: Stretch, recorded: Iterable[Recorded]) -> dict[int, str]:
    """Return what was decided in a stretch: seq -> the decision."""
    return {row.seq: row.json for row in recorded if _is_in(stretch, row)}


def _unknown(found: Replayable, recorded: Iterable[Recorded]) -> list[Checked]:
    """Return what was decided outside of all stretches: it cannot be made again."""
    counts: dict[tuple[str, str], int] = {}
    for row in recorded:
        if not any(_is_in(stretch, row) for stretch in found.stretches):
            why = next((one.why for one in found.unknown if _is_in(one, row)), "their records are not archived")
            counts[row.shard, why] = counts.get((row.shard, why), 0) + 1
    return [
        Checked(
            shard=shard, after=-1, events=0, compared=0, not_recorded=0, differences=0, first=[], unknown=count, why=why
        )
        for (shard, why), count in sorted(counts.items())
    ]


def _is_in(part: Stretch | Unknown, row: Recorded) -> bool:
    return part.shard_name == row.shard and part.first <= row.offset <= part.last


def _records(rows: pd.DataFrame) -> Iterator[Record]:
    columns = (rows[name] for name in ("topic", "partition", "offset", "at_ms", "key", "value"))
    for topic, partition, offset, at_ms, key, value in zip(*columns, strict=True):
        yield Record(topic, int(partition), int(offset), int(at_ms), key, value)


def _asked(
    spark: SparkSession, period: Period, place: ControlPartition | None = None
) -> dict[ControlPartition, tuple[int, int]]:
    """Return the shards that have records in a period: the offsets of the first and the last one.

    Raises:
        InvalidUsage: there are none; the message says what there is.
    """
    events = spark.table("events")
    if place is not None:
        events = events.where((f.col("topic") == place[0]) & (f.col("partition") == place[1]))
    rows = (
        events.where(period.condition)
        .groupBy("topic", "partition")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"))
        .collect()
    )
    if not rows:
        log = events.agg(f.min("at_ms").alias("begin"), f.max("at_ms").alias("end")).collect()[0]
        there_is = "" if log.begin is None else f"; it goes from {EpochMs(log.begin)} to {EpochMs(log.end)}"
        raise InvalidUsage(f"the archived log has no record {period}{there_is}")
    return {(row.topic, row.partition): (row.first, row.last) for row in rows}


def _recorded(spark: SparkSession, period: Period) -> DataFrame:
    """Return what was decided about records of a period."""
    cause = f.col("cause")
    # Of what was decided before the archived log begins, only the last words are kept.
    begun = f.lit(True)
    for (topic, partition), first in cut_logs(spark).items():
        begun = begun & ~((cause["topic"] == topic) & (cause["partition"] == partition) & (cause["offset"] < first))
    return (
        spark.table("decisions")
        .where(period.condition & begun)
        .select(
            *(cause[name].alias(name) for name in ("topic", "partition", "offset")), "shard", "seq", "group_id", "json"
        )
    )
