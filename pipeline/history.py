"""The past as the tables hold it: the log of each shard, the eras that decided it, the snapshots to go on from.

The functions read the views that `open_views` has opened.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import reduce
from operator import and_, or_
from typing import NamedTuple

from msgspec import Struct, structs
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from model.partitioner import partition_of
from model.records import Record, kind_of_topic
from model.shard import VERSION, Shard
from pipeline.groups import refuse_unknown_group
from wakeroll.errors import InvalidUsage
from wakeroll.reset import EpochMs

Place = tuple[str, int]
"""A control topic, and a partition of it: what a shard decides."""


class Period(NamedTuple):
    """A stretch of log time, epoch ms: from the first moment to before the second; None is as far as the log goes."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int) -> bool:
        """Say whether a moment is in it."""
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms < self.to_ms)

    @property
    def condition(self) -> Column:
        """The same of rows, by their `at_ms`."""
        after = f.lit(True) if self.from_ms is None else f.col("at_ms") >= self.from_ms
        return after if self.to_ms is None else after & (f.col("at_ms") < self.to_ms)

    def __str__(self) -> str:
        """Return it for a sentence: ``from 2026-07-01T03:00:00.000Z to the end of the log``."""
        begin = "the start of the log" if self.from_ms is None else str(EpochMs(self.from_ms))
        end = "the end of the log" if self.to_ms is None else str(EpochMs(self.to_ms))
        return f"from {begin} to {end}"


class Stretch(Struct, frozen=True, kw_only=True):
    """Records of a shard that one era decided, and where it began: at a snapshot, else with nothing."""

    topic: str
    partition: int
    era: int
    first: int
    """Offset of the first record that is asked about ..."""
    last: int
    """... and of the last one."""
    after: int
    """The last record that the beginning has in it; -1: none."""
    quiet_until: int
    """Without a snapshot, the first offset whose decisions were published."""
    last_seq: int
    """Of the decisions that the tables hold of this era; 0: none."""
    body: bytes | None = None
    """The snapshot; None: there is none before `first`."""

    @property
    def shard_name(self) -> str:
        """The shard with its era, as its decisions have it: ``groups-3.1``."""
        return f"{kind_of_topic(self.topic)}-{self.partition}.{self.era}"

    def shard(self, partitions: int) -> Shard:
        """Make the shard as it was after record `after`; its topic has so many partitions."""
        return Shard(self.topic, self.partition, partitions, self.body, era=self.era, quiet_until=self.quiet_until)


class _Era(NamedTuple):
    number: int
    begins: int
    """Offset of the first record that it decided anything about."""
    last_seq: int


def stretches_of(spark: SparkSession, asked: Mapping[Place, tuple[int, int]]) -> list[Stretch]:
    """Return what to replay, so that it begins as late as can be.

    Snapshots of another version of the machines are of no use.  An era without a snapshot began with nothing at the
    start of the log, and kept quiet about what had been decided before it.

    Args:
        spark: with the tables' views.
        asked: shard -> the first and the last offset that it is asked about.

    Raises:
        InvalidUsage: an era began before the archived log does, and none of its snapshots is so early; the message
            says since when it can be replayed.
    """
    eras, snapshots = _eras(spark), _snapshots(spark)
    found = []
    for (topic, partition), (first, last) in sorted(asked.items()):
        known = eras.get((topic, partition), [_Era(1, 0, 0)])
        # The first era began before it had anything to decide.
        begins = [0, *(era.begins for era in known[1:]), last + 1]
        for number, era in enumerate(known):
            its_first, its_last = max(first, begins[number]), min(last, begins[number + 1] - 1)
            if its_first <= its_last:
                usable = (offset for offset in snapshots.get((topic, partition, era.number), ()) if offset < its_first)
                found.append(
                    Stretch(
                        topic=topic,
                        partition=partition,
                        era=era.number,
                        first=its_first,
                        last=its_last,
                        after=max(usable, default=-1),
                        quiet_until=era.begins if era.number > 1 else 0,
                        last_seq=era.last_seq,
                    )
                )
    if any(one.after < 0 for one in found):
        _refuse_without_beginning(spark, found, snapshots)
    bodies = _bodies(spark, found)
    return [structs.replace(one, body=bodies.get((one.topic, one.partition, one.era, one.after))) for one in found]


def cut_logs(spark: SparkSession) -> dict[Place, int]:
    """Return the shards whose log was cut by `pipeline.retention`, each with the first offset that is still archived.

    Such a log begins behind a snapshot.  One that was never cut begins before all of them.
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


def _refuse_without_beginning(
    spark: SparkSession, stretches: Collection[Stretch], snapshots: Mapping[tuple[str, int, int], list[int]]
) -> None:
    """Raise `InvalidUsage` if a stretch would begin with nothing, where there was something that is gone."""
    cut = cut_logs(spark)
    for one in stretches:
        if one.after >= 0 or (one.topic, one.partition) not in cut:
            continue
        later = [offset for offset in snapshots.get((one.topic, one.partition, one.era), ()) if offset >= one.first]
        said = f"what {one.shard_name} began with is no longer archived, and no snapshot of it is so old"
        if not later:
            raise InvalidUsage(f"{said}; nothing of it can be replayed until there is one")
        here = (f.col("topic") == one.topic) & (f.col("partition") == one.partition) & (f.col("offset") > min(later))
        since = spark.table("events").where(here).agg(f.min("at_ms").alias("at_ms")).collect()[0].at_ms
        raise InvalidUsage(said + ("" if since is None else f"; it can be replayed from {EpochMs(since)} on"))


def records_of(spark: SparkSession, stretches: Collection[Stretch]) -> DataFrame:
    """Return the archived records that these stretches are replayed from, in no order."""
    places: dict[Place, list[Stretch]] = {}
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
    """Read the records of one shard here, in this process, by offset."""
    for row in records.orderBy("offset").toLocalIterator():
        key, value = (None if column is None else bytes(column) for column in (row.key, row.value))
        yield Record(row.topic, row.partition, row.offset, row.at_ms, key, value)


def place_of(spark: SparkSession, group_id: str, partitions: int) -> Place:
    """Return the shard of a group that the tables know.

    Raises:
        InvalidUsage: there is no such group, or its decisions stand elsewhere; the message says what must be wrong.
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
        raise InvalidUsage(f"nothing was ever decided about the queues of group {group_id!r}")
    for topic, partition in found:
        if partition == home:
            return topic, partition
    raise InvalidUsage(
        f"group {group_id!r} was decided in partition {found[0][1]}; of {partitions} it belongs to {home}; "
        "give the number of partitions that the deployment has, by WAKEROLL_PARTITIONS or --config"
    )


def shard_at(spark: SparkSession, place: Place, partitions: int, at_ms: int | None = None) -> Shard:
    """Return a shard as it was after its last archived record, or after the last one that is not later than a moment.

    Raises:
        InvalidUsage: the archived log does not reach back so far.
    """
    topic, partition = place
    until = Period(None, None if at_ms is None else at_ms + 1)
    events = spark.table("events").where((f.col("topic") == topic) & (f.col("partition") == partition))
    last = events.where(until.condition).agg(f.max("offset").alias("offset")).collect()[0].offset
    if last is None:
        begin = events.agg(f.min("at_ms").alias("at_ms")).collect()[0].at_ms
        raise InvalidUsage(f"there is no record of {topic}-{partition} {until}; its log begins at {EpochMs(begin)}")
    [stretch] = stretches_of(spark, {place: (last, last)})
    shard = stretch.shard(partitions)
    for record in in_order(records_of(spark, [stretch])):
        shard.apply(record)
    return shard


def _eras(spark: SparkSession) -> dict[Place, list[_Era]]:
    """Return the eras of each shard that have decided anything, the first one first."""
    cause = f.col("cause")
    rows = (
        spark.table("decisions")
        .groupBy(
            cause["topic"].alias("topic"),
            cause["partition"].alias("partition"),
            f.substring_index("shard", ".", -1).cast("int").alias("era"),
        )
        .agg(f.min(cause["offset"]).alias("begins"), f.max("seq").alias("last_seq"))
        .orderBy("topic", "partition", "era")
        .collect()
    )
    eras: dict[Place, list[_Era]] = {}
    for row in rows:
        eras.setdefault((row.topic, row.partition), []).append(_Era(row.era, row.begins, row.last_seq))
    return eras


def _snapshots(spark: SparkSession) -> dict[tuple[str, int, int], list[int]]:
    """Return topic, partition and era -> the offsets of the snapshots that this program can read."""
    rows = (
        spark.table("snapshots")
        .where(f.col("version") == VERSION)
        .groupBy("topic", "partition", "era")
        .agg(f.collect_set("offset").alias("offsets"))
        .collect()
    )
    return {(row.topic, row.partition, row.era): list(row.offsets) for row in rows}


def _bodies(spark: SparkSession, stretches: Collection[Stretch]) -> dict[tuple[str, int, int, int], bytes]:
    """Return topic, partition, era and offset -> the snapshot that a stretch begins with."""
    columns = ("topic", "partition", "era", "offset", "version")
    wanted = [
        reduce(and_, (f.col(name) == value for name, value in zip(columns, values, strict=True)))
        for one in stretches
        for values in [(one.topic, one.partition, one.era, one.after, VERSION)]
    ]
    rows = spark.table("snapshots").where(reduce(or_, wanted, f.lit(False))).select(*columns, "body").collect()
    return {(row.topic, row.partition, row.era, row.offset): bytes(row.body) for row in rows}
