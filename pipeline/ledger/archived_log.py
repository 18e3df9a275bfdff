"""The archived log of each shard, its eras, and the snapshots from which a replay can begin.

The functions read the views that `open_views` has opened.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from msgspec import Struct, structs
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from model.partitioner import ControlPartition, partition_of
from model.records import Record, kind_of_topic
from model.shard import VERSION, Shard
from model.signing import OnRecord
from pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage


class Period(NamedTuple):
    """A period of log time (epoch ms) from `from_ms` to before `to_ms`; None: the start or end of the log."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int) -> bool:
        """Return whether the period contains a moment."""
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms < self.to_ms)

    @property
    def condition(self) -> Column:
        """Spark condition that selects the rows whose `at_ms` is in the period."""
        after = f.lit(True) if self.from_ms is None else f.col("at_ms") >= self.from_ms
        return after if self.to_ms is None else after & (f.col("at_ms") < self.to_ms)

    def __str__(self) -> str:
        """Return the period as words: ``from 2026-07-01T03:00:00.000Z to the end of the log``."""
        begin = "the start of the log" if self.from_ms is None else str(EpochMs(self.from_ms))
        end = "the end of the log" if self.to_ms is None else str(EpochMs(self.to_ms))
        return f"from {begin} to {end}"


class Stretch(Struct, frozen=True, kw_only=True):
    """Records of a shard that one era decided, and the state before them: a snapshot, or the empty state."""

    topic: str
    partition: int
    era: int
    first: int
    """Offset of the first record to replay."""
    last: int
    """Offset of the last record to replay."""
    after: int
    """Offset of the last record that the state at the beginning includes; -1 if it is empty."""
    last_seq: int
    """Highest seq of this era's decisions in the tables; 0 if there are none."""
    body: bytes | None = None
    """Bytes of the snapshot; None if era 1 begins with the empty state."""
    refused: Mapping[int, str] = {}
    """Offset -> recorded reason why that record's signature was rejected; offsets after `after`, up to `last`."""

    @property
    def shard_name(self) -> str:
        """Name of the shard with its era, as in its decisions: ``groups-3.1``."""
        return _name((self.topic, self.partition), self.era)

    def shard(self, partitions: int) -> Shard:
        """Return the shard in its state after record `after`; `partitions` is the number of its topic."""
        return Shard(self.topic, self.partition, partitions, self.body, signatures=OnRecord(self.refused))


class Unknown(Struct, frozen=True, kw_only=True):
    """Records of a shard that cannot be replayed, because the state before them is not known."""

    shard_name: str
    """Name of the shard with its era."""
    first: int
    last: int
    why: str
    """Reason, such as the missing records, as a part of a sentence."""


class Replayable(NamedTuple):
    """Records that can be replayed and records that cannot, ordered by shard and offset."""

    stretches: list[Stretch]
    unknown: list[Unknown]


class _Era(NamedTuple):
    """One era of a shard: it decided the records from `first` to `last`, if there are any."""

    number: int
    first: int
    last: int
    last_seq: int
    starts: list[int]
    """Offset of the last record in each of its snapshots, ascending.  A replay can begin after each of them.  The first
    snapshot of a later era is the state with which it began."""
    overlaps: int
    """Last offset under which an earlier era decided other records; -1 if there is none."""


def stretches_of(spark: SparkSession, asked: Mapping[ControlPartition, tuple[int, int]]) -> Replayable:
    """Return the shortest stretches that replay the requested records.

    Snapshots of another version of the state machines are ignored.  Era 1 begins with the empty state, a later era with
    its first snapshot.  After a gap in the archive, a replay begins with the next snapshot.

    Args:
        spark: session with the views of the tables.
        asked: shard -> the first and the last offset of the requested records.
    """
    decided, snapshots = _decided(spark), _snapshots(spark)
    logs = _archived(spark, asked)
    found = Replayable([], [])
    for place, (first, last) in sorted(asked.items()):
        its = {era: offsets for (topic, partition, era), offsets in snapshots.items() if (topic, partition) == place}
        known = decided.get(place, [])
        # An era may read again records that earlier eras decided; their verdict on a signature stays valid.
        refused = {offset: why for era in known for offset, why in era.refused.items()}
        for era in _eras(known, its):
            for run in logs[place]:
                begin, end = max(first, era.first, run.first), min(last, era.last, run.last)
                if begin <= end:
                    _add(found, place, era, (begin, end), run, refused)
    bodies = _bodies(spark, found.stretches)
    return found._replace(
        stretches=[
            structs.replace(one, body=bodies.get((one.topic, one.partition, one.era, one.after)))
            for one in found.stretches
        ]
    )


def _eras(decided: Collection["_Decided"], snapshots: Mapping[int, list[int]]) -> list[_Era]:
    """Return the eras of a shard, with the records that each decided.

    An era that began without a snapshot, or with an old one, reads records again that the era before it has decided.
    These records count for the earlier era.
    """
    known = {one.era: one for one in decided}
    eras: list[_Era] = []
    reached = -1
    for number in sorted({*known, *snapshots} or {1}):
        its, starts = known.get(number), snapshots.get(number, [])
        begins = [*(start + 1 for start in starts[:1]), *([its.first] if its else [])]
        # The first era covers the log from its start, also before its first decision.
        first = max(reached + 1, min(begins)) if eras else 0
        overlaps = reached if eras and its and its.first <= reached else -1
        if eras:
            eras[-1] = eras[-1]._replace(last=first - 1)
        eras.append(_Era(number, first, _ENDLESS, its.last_seq if its else 0, starts, overlaps))
        reached = max(reached, its.last if its else -1)
    return eras


_ENDLESS = 2**63 - 1


def _add(
    found: Replayable,
    place: ControlPartition,
    era: _Era,
    asked: tuple[int, int],
    run: "_Run",
    refused: Mapping[int, str],
) -> None:
    """Add the requested records of an archived run: those after the nearest snapshot can be replayed, others cannot."""
    begin, end = asked
    starts = [start for start in era.starts if start >= max(run.first - 1, era.overlaps)]
    if era.number == 1 and run.is_first:
        starts.insert(0, -1)
    after = max((start for start in starts if start < begin), default=None)
    if after is None:
        after = min((start for start in starts if start < end), default=None)
        if era.overlaps >= 0:
            why = "the log was truncated, and the same offsets hold other records now"
        elif run.is_first:
            why = "no snapshot shows the state at the start of the era"
        else:
            why = f"records before {run.first} are not archived"
        last = end if after is None else after
        found.unknown.append(Unknown(shard_name=_name(place, era.number), first=begin, last=last, why=why))
    if after is not None:
        topic, partition = place
        found.stretches.append(
            Stretch(
                topic=topic,
                partition=partition,
                era=era.number,
                first=max(begin, after + 1),
                last=end,
                after=after,
                last_seq=era.last_seq,
                refused={offset: why for offset, why in refused.items() if after < offset <= end},
            )
        )


def cut_logs(spark: SparkSession) -> dict[ControlPartition, int]:
    """Return the shards whose archived log retention has shortened, each with its first archived offset.

    Such a log begins after a snapshot (see `pipeline.ledger.retention`).  A complete log begins before all snapshots.
    """
    snapshots = spark.table("snapshots").groupBy("topic", "partition").agg(f.min("offset").alias("snapshot"))
    rows = (
        spark.table("events")
        .groupBy("topic", "partition")
        .agg(f.min("offset").alias("first"))
        .join(snapshots, on=["topic", "partition"], how="inner")
        .where((f.col("snapshot") < f.col("first")) & (f.col("first") > 0))
        .collect()
    )
    return {(row.topic, row.partition): row.first for row in rows}


def records_of(spark: SparkSession, stretches: Collection[Stretch]) -> DataFrame:
    """Return the archived records that a replay of these stretches needs, unordered."""
    places: dict[ControlPartition, list[Stretch]] = {}
    for stretch in stretches:
        places.setdefault((stretch.topic, stretch.partition), []).append(stretch)
    wanted = [
        (f.col("topic") == topic)
        & (f.col("partition") == partition)
        & (f.col("offset") > min(stretch.after for stretch in its))
        & (f.col("offset") <= max(stretch.last for stretch in its))
        for (topic, partition), its in sorted(places.items())
    ]
    return (
        spark.table("events")
        .where(reduce(or_, wanted, f.lit(False)))
        .select("topic", "partition", "offset", "at_ms", "key", "value")
    )


def in_order(records: DataFrame) -> Iterator[Record]:
    """Yield the records of one shard in the order of their offsets; the driver process reads them."""
    for row in records.orderBy("offset").toLocalIterator():
        key, value = (None if column is None else bytes(column) for column in (row.key, row.value))
        yield Record(row.topic, row.partition, row.offset, row.at_ms, key, value)


def place_of(spark: SparkSession, group_id: str, partitions: int) -> ControlPartition:
    """Return the shard of a group, as the tables show it.

    Raises:
        InvalidUsage: the tables do not hold the group, or `partitions` leads to another shard; the message names the
            likely mistake.
    """
    home = partition_of(group_id.encode(), partitions)
    cause = f.col("cause")
    rows = (
        spark.table("decisions")
        .where((f.col("group_id") == group_id) & (f.col("kind") == "rebalance"))
        .select(cause["topic"].alias("topic"), cause["partition"].alias("partition"))
        .distinct()
        .collect()
    )
    found = sorted((row.topic, row.partition) for row in rows if kind_of_topic(row.topic) == "groups")
    if not found:
        refuse_unknown_group(spark, group_id)
        raise InvalidUsage(f"the tables hold no rebalance of group {group_id!r}")
    for topic, partition in found:
        if partition == home:
            return topic, partition
    raise InvalidUsage(
        f"group {group_id!r} was decided in partition {found[0][1]}, but with {partitions} partitions it belongs to "
        f"{home}; set the deployment's number of partitions, with WAKEROLL_PARTITIONS or --config"
    )


def shard_at(spark: SparkSession, place: ControlPartition, partitions: int, at_ms: int | None = None) -> Shard:
    """Return a shard in its state after its last archived record, or after the last record up to a moment.

    Args:
        spark: session with the views of the tables.
        place: topic and partition of the shard.
        partitions: number of partitions of the topic.
        at_ms: the moment in log time (epoch ms), inclusive; None: the end of the log.

    Raises:
        InvalidUsage: the archived log begins after that moment, or lacks records before it.
    """
    topic, partition = place
    until = Period(None, None if at_ms is None else at_ms + 1)
    events = spark.table("events").where((f.col("topic") == topic) & (f.col("partition") == partition))
    last = events.where(until.condition).agg(f.max("offset").alias("offset")).collect()[0].offset
    if last is None:
        begin = events.agg(f.min("at_ms").alias("at_ms")).collect()[0].at_ms
        raise InvalidUsage(
            f"no archived record of {topic}-{partition} {until}; its archived log begins at {EpochMs(begin)}"
        )
    found = stretches_of(spark, {place: (last, last)})
    for unknown in found.unknown:
        raise InvalidUsage(f"the state of {unknown.shard_name} cannot be rebuilt {until}: {unknown.why}")
    [stretch] = found.stretches
    shard = stretch.shard(partitions)
    for record in in_order(records_of(spark, [stretch])):
        shard.apply(record)
    return shard


class _Decided(NamedTuple):
    """The decisions of one era of a shard, summarised from the tables."""

    era: int
    first: int
    """Offset of the first record that caused a decision."""
    last: int
    """Offset of the last record that caused a decision."""
    last_seq: int
    refused: dict[int, str]
    """Offset -> recorded reason why the signature of that record was rejected."""


def _decided(spark: SparkSession) -> dict[ControlPartition, list[_Decided]]:
    """Return the eras of each shard that have decisions."""
    cause = f.col("cause")
    # `when` parses the JSON of the few rejected rows only.
    is_refusal = (f.col("kind") == "rejected") & (f.get_json_object("json", "$.rule") == "signature")
    refusal = f.struct(cause["offset"].alias("offset"), f.get_json_object("json", "$.detail").alias("detail"))
    rows = (
        spark.table("decisions")
        .groupBy(
            cause["topic"].alias("topic"),
            cause["partition"].alias("partition"),
            "era",
        )
        .agg(
            f.min(cause["offset"]).alias("first"),
            f.max(cause["offset"]).alias("last"),
            f.max("seq").alias("last_seq"),
            f.collect_list(f.when(is_refusal, refusal)).alias("refused"),
        )
        .collect()
    )
    eras: dict[ControlPartition, list[_Decided]] = {}
    for row in rows:
        refused = {refusal.offset: refusal.detail for refusal in row.refused}
        its = _Decided(row.era, row.first, row.last, row.last_seq, refused)
        eras.setdefault((row.topic, row.partition), []).append(its)
    return eras


class _Run(NamedTuple):
    """First and last offset of consecutive archived records of a shard."""

    first: int
    last: int
    is_first: bool
    """Whether the run begins at the start of the shard's log."""


def _archived(spark: SparkSession, asked: Collection[ControlPartition]) -> dict[ControlPartition, list[_Run]]:
    """Return the runs of archived records of each shard, ascending."""
    events = spark.table("events")
    rows = (
        events.groupBy("topic", "partition")
        .agg(f.min("offset").alias("first"), f.max("offset").alias("last"), f.count("offset").alias("count"))
        .collect()
    )
    cut = cut_logs(spark) if any(row.first > 0 for row in rows if (row.topic, row.partition) in asked) else {}
    runs = {
        (row.topic, row.partition): [_Run(row.first, row.last, is_first=(row.topic, row.partition) not in cut)]
        for row in rows
    }
    if all(row["count"] > row.last - row.first for row in rows if (row.topic, row.partition) in asked):
        return runs
    before = f.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset"))
    gaps = (
        events.select("topic", "partition", "offset", before.alias("before"))
        .where(f.col("offset") > f.col("before") + 1)
        .orderBy("offset")
        .collect()
    )
    for row in gaps:
        its = runs[row.topic, row.partition]
        run = its.pop()
        its += [run._replace(last=row.before), _Run(row.offset, run.last, is_first=False)]
    return runs


def _name(place: ControlPartition, era: int) -> str:
    return f"{kind_of_topic(place[0])}-{place[1]}.{era}"


def _snapshots(spark: SparkSession) -> dict[tuple[str, int, int], list[int]]:
    """Return (topic, partition, era) -> ascending offsets of the snapshots that this version can read."""
    rows = (
        spark.table("snapshots")
        .where(f.col("version") == VERSION)
        .groupBy("topic", "partition", "era")
        .agg(f.collect_set("offset").alias("offsets"))
        .collect()
    )
    return {(row.topic, row.partition, row.era): sorted(row.offsets) for row in rows}


def _bodies(spark: SparkSession, stretches: Collection[Stretch]) -> dict[tuple[str, int, int, int], bytes]:
    """Return (topic, partition, era, offset) -> bytes of the snapshot with which a stretch begins."""
    columns = ("topic", "partition", "era", "offset", "version")
    wanted = [
        reduce(and_, (f.col(name) == value for name, value in zip(columns, values, strict=True)))
        for one in stretches
        for values in [(one.topic, one.partition, one.era, one.after, VERSION)]
    ]
    rows = spark.table("snapshots").where(reduce(or_, wanted, f.lit(False))).select(*columns, "body").collect()
    return {(row.topic, row.partition, row.era, row.offset): bytes(row.body) for row in rows}
