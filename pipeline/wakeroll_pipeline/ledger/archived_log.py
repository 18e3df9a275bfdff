"""The archived log of each shard: its runs of records, the decisions of its eras, and the shards of a group.

The functions query an open ledger (`wakeroll_pipeline.ledger.ledger`), in SQL that both engines run.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from wakeroll.errors import InvalidUsage
from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.partitioner import ControlPartition, partition_of
from wakeroll_model.records import kind_of_topic
from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.shard_growth import numbers_of, steps_of


class Run(NamedTuple):
    """First and last offset of consecutive archived records of a shard."""

    first: int
    last: int
    is_first: bool
    """Whether the run begins at the start of the shard's log."""


def archived_runs(ledger: Ledger, asked: Collection[ControlPartition]) -> dict[ControlPartition, list[Run]]:
    """Return the runs of archived records of each shard, ascending."""
    rows = ledger.rows("""
        select
            topic,
            partition,
            min(events.offset) as first_offset,
            max(events.offset) as last_offset,
            count(*) as records
        from events
        group by topic, partition
    """)
    its = [row for row in rows if (row.topic, row.partition) in asked]
    cut = cut_logs(ledger) if any(row.first_offset > 0 for row in its) else {}
    runs = {
        (row.topic, row.partition): [
            Run(row.first_offset, row.last_offset, is_first=(row.topic, row.partition) not in cut)
        ]
        for row in rows
    }
    if all(row.records > row.last_offset - row.first_offset for row in its):
        return runs
    for place, before, after in gaps_of(ledger):
        of_shard = runs[place]
        run = of_shard.pop()
        of_shard += [run._replace(last=before), Run(after, run.last, is_first=False)]
    return runs


def gaps_of(ledger: Ledger) -> Iterator[tuple[ControlPartition, int, int]]:
    """Yield the gaps of the archived logs, in order: partition, and the offsets before and after the gap."""
    for topic, partition, before, after in ledger.stream("""
        with places as (
            select
                topic,
                partition,
                events.offset as after_gap,
                lag(events.offset) over (partition by topic, partition order by events.offset) as before_gap
            from events
        )
        select topic, partition, before_gap, after_gap from places where after_gap > before_gap + 1 order by after_gap
    """):
        yield (topic, partition), before, after


def cut_logs(ledger: Ledger) -> dict[ControlPartition, int]:
    """Return the shards whose archived log retention has shortened, each with its first archived offset.

    Such a log begins after a snapshot (see `wakeroll_pipeline.ledger.retention`).  A complete log begins before all
    snapshots.
    """
    rows = ledger.rows("""
        with logs as (
            select topic, partition, min(events.offset) as first_offset from events group by topic, partition
        ),
        states as (
            select topic, partition, min(snapshots.offset) as snapshot from snapshots group by topic, partition
        )
        select topic, partition, first_offset
        from logs join states using (topic, partition)
        where snapshot < first_offset and first_offset > 0
    """)
    return {(row.topic, row.partition): row.first_offset for row in rows}


class Decided(NamedTuple):
    """The decisions of one era of a shard, summarised from the tables."""

    era: int
    first: int
    """Offset of the first record that caused a decision."""
    last: int
    """Offset of the last record that caused a decision."""
    last_seq: int
    refused: dict[int, str]
    """Offset -> recorded reason why the signature of that record was rejected."""


def decided_eras(ledger: Ledger) -> dict[ControlPartition, list[Decided]]:
    """Return the eras of each shard that have decisions."""
    refused: dict[tuple[str, int, int], dict[int, str]] = {}
    for row in ledger.rows("select cause, era, detail from rejections where rule = 'signature'"):
        its = refused.setdefault((row.cause.topic, row.cause.partition, row.era), {})
        its[row.cause.offset] = row.detail
    rows = ledger.rows("""
        select
            cause.topic as topic,
            cause.partition as partition,
            era,
            min(cause.offset) as first_offset,
            max(cause.offset) as last_offset,
            max(seq) as last_seq
        from decisions
        group by cause.topic, cause.partition, era
    """)
    eras: dict[ControlPartition, list[Decided]] = {}
    for row in rows:
        its = refused.get((row.topic, row.partition, row.era), {})
        one = Decided(row.era, row.first_offset, row.last_offset, row.last_seq, its)
        eras.setdefault((row.topic, row.partition), []).append(one)
    return eras


def highest_derived(ledger: Ledger) -> dict[str, int]:
    """Return shard and era -> highest seq in `assignments` and `offsets`: their decisions were written before."""
    rows = ledger.rows("""
        select shard, max(seq) as last_seq
        from (select shard, seq from assignments union all select shard, seq from offsets) as derived
        group by shard
    """)
    return {row.shard: row.last_seq for row in rows}


LATEST_MS = 600_000
"""Log time (ms) after a record by which the recorder has written its decisions, unless no coordinator ran meanwhile."""


def decided_until(ledger: Ledger) -> int | None:
    """Return the log time up to which records have their decisions in the tables; None if there are no records."""
    [row] = ledger.rows("select max(at_ms) as last_ms from events")
    return None if row.last_ms is None else row.last_ms - LATEST_MS


def windows(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last position of each window in which rows are sorted."""
    for begin in range(first, last + 1, SORTED_POSITIONS):
        yield begin, min(begin + SORTED_POSITIONS - 1, last)


SORTED_POSITIONS = 250_000
"""Positions of a stream whose rows are sorted together. Otherwise DuckDB would sort a whole stream, values included, in
temporary files as large as the decoded rows. Each window opens the files of the table again: 0.25 ms of CPU each."""


def places_of(ledger: Ledger, group_id: str, partitions: int) -> list[ControlPartition]:
    """Return the present and the former shards of a group, sorted: it moves when the number of partitions changes.

    Raises:
        InvalidUsage: the tables do not have the group, or `partitions` leads to another shard; the message names the
            likely mistake.
    """
    rows = ledger.rows(
        "select distinct cause.topic as topic, cause.partition as partition from decisions "
        "where group_id = $group_id and kind = 'rebalance'",
        group_id=group_id,
    )
    found = sorted((row.topic, row.partition) for row in rows if kind_of_topic(row.topic) in ("groups", KIND))
    if not found:
        refuse_unknown_group(ledger, group_id)
        raise InvalidUsage(f"the tables hold no rebalance of group {group_id!r}")
    home = partition_of(group_id.encode(), partitions)
    if all(partition == home for _, partition in found):
        return found[:1]
    homes = {partition_of(group_id.encode(), number) for number in numbers_of(steps_of(ledger), partitions)}
    if strange := [partition for _, partition in found if partition not in homes]:
        raise InvalidUsage(
            f"group {group_id!r} was decided in partition {strange[0]}, but with {partitions} partitions it belongs "
            f"to {home}; set the deployment's number of partitions, with WAKEROLL_PARTITIONS or --config"
        )
    return [(found[0][0], partition) for partition in sorted(homes)]
