"""Replay: decide again from the archived log, and compare with the recorded decisions byte for byte."""

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
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage

SHOWN = 5
"""Maximum number of differences kept per shard; most later ones follow from the first."""
_BATCH = 10_000
"""Records after which a shard is serialized, as after a batch of `coordinate`, to free the memory of its changes."""


class Difference(Struct, frozen=True):
    """A decision that differs from the recorded one."""

    seq: int
    recorded: str | None
    """JSON in the table; None if the table has no such decision."""
    decided: str | None
    """JSON of the replay; None if the replay makes no such decision."""


class Checked(Struct, frozen=True, kw_only=True):
    """The result of the replay of one shard in one era."""

    shard: str
    """Name of the shard with its era, as in its decisions: ``groups-3.1``."""
    after: int
    """Offset of the snapshot with which the replay began; -1 if it began with the empty state."""
    events: int
    """Number of records of the period that were decided again."""
    compared: int
    """Number of decisions of the period that are in the table, in the replay, or in both."""
    not_recorded: int
    """Number of decisions after the last one in the table: not made or not written yet."""
    differences: int
    first: list[Difference]
    """The first differences, at most `SHOWN`."""
    unknown: int = 0
    """Number of decisions in the table that cannot be replayed."""
    why: str = ""
    """Reason why they cannot be replayed; empty if `unknown` is 0."""


def replay_all(spark: SparkSession, partitions: int, period: Period) -> list[Checked]:
    """Replay all decisions of a period in Spark; each shard begins with the nearest earlier snapshot.

    Args:
        spark: session with the views of the tables.
        partitions: number of partitions of each control topic.
        period: period of log time.

    Returns:
        One result per shard and era, sorted.

    Raises:
        InvalidUsage: the tables hold no record of this period, or were made with another number of partitions.
    """
    asked = _asked(spark, period)
    highest = max(partition for _, partition in asked)
    if highest >= partitions:
        raise InvalidUsage(
            f"the tables have records of partition {highest}, but this deployment has {partitions} partitions; "
            "set the number with which the tables were made, with WAKEROLL_PARTITIONS or --config"
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
    """Replay the decisions about a group in a period, in this process, without those about its held pulls.

    The whole shard is replayed, because decisions are numbered per shard.  Only those about the group are compared.

    Raises:
        InvalidUsage: the tables hold no record of this period, or the group's shard is not found.
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
    """Replay a stretch, and compare.

    Args:
        stretch: records to replay, and the state before them.
        partitions: number of partitions of the control topic.
        records: records of the shard, ordered by offset; those outside of the stretch are skipped.
        recorded: seq -> JSON of the recorded decisions of this stretch and period.
        period: period whose decisions are compared.
        group_id: group whose decisions are compared; None: all decisions.
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
    """Check one shard; Spark calls this function with its topic and partition."""
    records = records.sort_values("offset")
    columns = (recorded[name] for name in ("shard", "seq", "offset", "json"))
    rows = [Recorded(shard, int(seq), int(offset), json) for shard, seq, offset, json in zip(*columns, strict=True)]
    mine = [stretch for stretch in found.stretches if (stretch.topic, stretch.partition) == place]
    checks = [check(stretch, partitions, _records(records), _of(stretch, rows), period) for stretch in mine]
    checks += _unknown(found, rows)
    return pd.DataFrame({"checked": [msgspec.json.encode(one) for one in checks]})


class Recorded(NamedTuple):
    """A decision in the table."""

    shard: str
    """Name of the shard with its era."""
    seq: int
    offset: int
    """Offset of the record that caused the decision."""
    json: str


def _of(stretch: Stretch, recorded: Iterable[Recorded]) -> dict[int, str]:
    """Return the recorded decisions of a stretch: seq -> JSON."""
    return {row.seq: row.json for row in recorded if _is_in(stretch, row)}


def _unknown(found: Replayable, recorded: Iterable[Recorded]) -> list[Checked]:
    """Return the counts of recorded decisions outside of all stretches, which cannot be replayed."""
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
    """Return the shards with records in a period -> offsets of the first and the last of these records.

    Raises:
        InvalidUsage: there is no such record; the message names the period of the archived log.
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
        there_is = "" if log.begin is None else f"; it covers {EpochMs(log.begin)} to {EpochMs(log.end)}"
        raise InvalidUsage(f"the archived log has no record {period}{there_is}")
    return {(row.topic, row.partition): (row.first, row.last) for row in rows}


def _recorded(spark: SparkSession, period: Period) -> DataFrame:
    """Return the recorded decisions about records of a period."""
    cause = f.col("cause")
    # Of the decisions before the start of the archived log, retention keeps only the latest about each subject.
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
