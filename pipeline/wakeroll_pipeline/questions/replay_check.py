"""Replay: decide again from the archived log, and compare with the recorded decisions byte for byte."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from types import MappingProxyType
from typing import NamedTuple

from msgspec import Struct

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import era_of, without_era
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_pipeline.ledger.archived_log import cut_logs, places_of, windows
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.losses import Range, is_lost
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.replay_stretches import (
    Replayable,
    Stretch,
    Unknown,
    differs,
    records_in_order,
    stretches_of,
    with_snapshots,
)
from wakeroll_pipeline.ledger.table_damage import unreadable

SHOWN = 5
"""Maximum number of differences kept per shard; most later ones follow from the first."""
_BATCH = 10_000
"""Number of records after which a shard is serialized, as after a batch of `coordinate`, to free the memory of its
changes."""


class Difference(Struct, frozen=True):
    """A decision that differs from the recorded one."""

    seq: int
    recorded: str | None
    """JSON in the table; None if the table has no such decision."""
    decided: str | None
    """JSON of the replay; None if the replay makes no such decision."""


class UnequalSnapshot(Struct, frozen=True):
    """A snapshot that differs from the state of the replay after the same record."""

    offset: int
    """Offset of the last record that it includes."""
    parts: list[str]
    """Names of the fields of the state, and of the groups or queues, that differ."""


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
    """Reason why these decisions cannot be replayed; empty if `unknown` is 0."""
    is_on_record: bool = False
    """Whether the reason is that records are recorded as lost."""
    lost: int = 0
    """Number of decisions of the period that are recorded as lost; they are not part of any other count."""
    edited: int = 0
    """Number of decisions of the period that differ, as an operator has accepted; they are not part of any other
    count."""
    snapshots: int = 0
    """Number of snapshots that were compared with the state of the replay after the same record."""
    unequal: list[UnequalSnapshot] = []
    """The snapshots that differ, ordered by offset."""


Compare = Callable[[int, Sequence[bytes]], list[str]]
"""Compares the snapshot at an offset with its possible states; returns the parts that differ, none if there are
none."""


class Recorded(NamedTuple):
    """A decision in the table."""

    shard: str
    """Name of the shard with its era."""
    seq: int
    offset: int
    """Offset of the record that caused the decision."""
    json: str


def plan_replay(ledger: Ledger, partitions: int, period: Period, group_id: str | None = None) -> Replayable:
    """Return the stretches that replay a period: of all shards, or of the shard of a group.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        period: period of log time.
        group_id: the group; None: all.

    Raises:
        InvalidUsage: the tables have no record of this period or no such group, or were made with another number of
            partitions.
    """
    if group_id is not None:
        asked = _asked(ledger, period, places_of(ledger, group_id, partitions))
    else:
        asked = _asked(ledger, period)
        _refuse_more_partitions(asked, partitions)
    return with_snapshots(ledger, stretches_of(ledger, asked))._replace(begins=cut_logs(ledger))


def _refuse_more_partitions(asked: Iterable[ControlPartition], partitions: int) -> None:
    highest = max(partition for _, partition in asked)
    if highest >= partitions:
        raise InvalidUsage(
            f"the tables have records of partition {highest}, but this deployment has {partitions} partitions; "
            "set the number with which the tables were made, with WAKEROLL_PARTITIONS or --config"
        )


def replay_group(ledger: Ledger, partitions: int, period: Period, group_id: str) -> list[Checked]:
    """Replay the decisions about a group in a period, in this process, without those about its held pulls.

    The whole shard is replayed, because decisions are numbered per shard.  Only those about the group are compared.

    Returns:
        One result per shard and era, sorted.

    Raises:
        InvalidUsage: as `plan_replay`.
    """
    found = plan_replay(ledger, partitions, period, group_id)
    checks = [check_stretch(ledger, stretch, partitions, period, group_id) for stretch in found.stretches]
    return in_order([*checks, *unknown_of(ledger, found, period, group_id)])


def check_stretch(
    ledger: Ledger, stretch: Stretch, partitions: int, period: Period, group_id: str | None = None
) -> Checked:
    """Replay a stretch of a ledger, and compare; the arguments are those of `plan_replay`."""
    records = records_in_order(ledger, stretch)
    recorded = _recorded_in_order(ledger, stretch, period, group_id)

    def compare(offset: int, states: Sequence[bytes]) -> list[str]:
        return differs(ledger, stretch, offset, states)

    return check(stretch, partitions, records, recorded, period, group_id, compare)


def _recorded_in_order(
    ledger: Ledger, stretch: Stretch, period: Period, group_id: str | None
) -> Iterator[tuple[int, str]]:
    """Yield seq and JSON of the recorded decisions of a stretch and a period, ordered by seq."""
    recorded = f"from decisions where {recorded_in(period, group_id)} and {_is_of(stretch)}"
    [ends] = ledger.rows(f"select min(seq) as first_seq, max(seq) as last_seq {recorded}", **_value_of(group_id))
    if ends.first_seq is not None:
        for first, last in windows(ends.first_seq, ends.last_seq):
            part = f"select seq, json {recorded} and seq between {first} and {last} order by era, seq"
            yield from ledger.stream(part, **_value_of(group_id))


def check(
    stretch: Stretch,
    partitions: int,
    records: Iterable[Record],
    recorded: Iterable[tuple[int, str]],
    period: Period,
    group_id: str | None = None,
    compare: Compare = lambda _offset, _states: ["bytes of the state"],
) -> Checked:
    """Replay a stretch, and compare its decisions, and its state with each snapshot that it passes.

    Args:
        stretch: records to replay, and the state before them.
        partitions: number of partitions of the control topic.
        records: records of the shard, ordered by offset; those outside of the stretch are skipped.
        recorded: seq and JSON of the recorded decisions of this stretch and period, ordered by seq.
        period: period whose decisions are compared.
        group_id: group whose decisions are compared; None: all decisions.
        compare: called for a snapshot whose bytes are not those of the replay.
    """
    shard = stretch.shard(partitions)
    snapshots, unequal = 0, []
    left = _InOrder(recorded)
    events = compared = not_recorded = lost = 0
    found = _Differences(stretch.unproven)
    for record in records:
        if not stretch.after < record.offset <= stretch.last:
            continue
        decisions = shard.apply(record)
        if record.offset in stretch.snapshots:
            snapshots += 1
            states = shard.bodies()
            if stretch.snapshots[record.offset] not in [sha256(state).hexdigest() for state in states] and (
                parts := compare(record.offset, states)
            ):
                unequal.append(UnequalSnapshot(record.offset, parts))
        elif record.offset % _BATCH == 0:
            shard.body()
        if record.offset < stretch.first or not period.has(record.timestamp_ms):
            continue
        events += 1
        for decision in decisions:
            if group_id not in (None, decision.group_id):
                continue
            found.add_recorded(left.before(decision.seq))
            was = left.take(decision.seq)
            is_due = stretch.due_ms is not None and record.timestamp_ms <= stretch.due_ms
            if was is None and is_lost(stretch.lost, decision.seq):
                lost += 1
                continue
            if was is None and decision.seq > stretch.last_seq and not is_due:
                not_recorded += 1
                continue
            now = encode_decision(decision).decode()
            if now == was or not found.add(Difference(decision.seq, was, now)):
                compared += 1
    found.add_recorded(left.rest())
    return Checked(
        shard=stretch.shard_name,
        after=stretch.after,
        events=events,
        compared=compared + found.only_recorded,
        not_recorded=not_recorded,
        differences=found.count,
        first=found.first,
        lost=lost,
        edited=found.edited,
        snapshots=snapshots,
        unequal=unequal,
    )


class _Differences:
    """The decisions that differ: all are counted, and the first ones are kept."""

    def __init__(self, unproven: Sequence[Range]) -> None:
        self._unproven = unproven
        self.edited = 0
        """Number of differences that an operator has accepted."""
        self.count = 0
        self.only_recorded = 0
        """Number of decisions that the replay does not make."""
        self.first: list[Difference] = []

    def add(self, one: Difference) -> bool:
        """Add a decision that differs; return whether an operator has accepted that: then it only counts as edited."""
        if one.recorded is not None and is_lost(self._unproven, one.seq):
            self.edited += 1
            return True
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(one)
        return False

    def add_recorded(self, decisions: Iterable[tuple[int, str]]) -> None:
        """Add recorded decisions, each with its seq and JSON, that the replay does not make."""
        for seq, was in decisions:
            self.only_recorded += not self.add(Difference(seq, was, None))


class _InOrder:
    """Recorded decisions, which are read one by one during a replay."""

    def __init__(self, rows: Iterable[tuple[int, str]]) -> None:
        self._rows = iter(rows)
        self._next = next(self._rows, None)

    def before(self, seq: int) -> Iterator[tuple[int, str]]:
        """Yield the decisions with a lower seq, and move past them."""
        while self._next is not None and self._next[0] < seq:
            yield self._next
            self._next = next(self._rows, None)

    def take(self, seq: int) -> str | None:
        """If the next decision has this seq, move past it and return its JSON; otherwise return None."""
        if self._next is None or self._next[0] != seq:
            return None
        json = self._next[1]
        self._next = next(self._rows, None)
        return json

    def rest(self) -> Iterator[tuple[int, str]]:
        """Yield all remaining decisions."""
        while self._next is not None:
            yield self._next
            self._next = next(self._rows, None)


def in_order(checks: Iterable[Checked]) -> list[Checked]:
    """Return results sorted by shard, era and offset."""
    return sorted(checks, key=lambda one: (one.shard.rpartition(".")[0], era_of(one.shard), one.after))


def unknown_of(ledger: Ledger, found: Replayable, period: Period, group_id: str | None = None) -> list[Checked]:
    """Return the counts of recorded decisions of a period that cannot be replayed, because no stretch has them."""
    in_any = " or ".join(f"({_is_of(stretch)})" for stretch in found.stretches) or "false"
    rows = ledger.stream(
        "select shard, seq, cause.offset as at_offset, '' as json from decisions "
        f"where {recorded_in(period, group_id, found.begins)} and not ({in_any})",
        **_value_of(group_id),
    )
    return counts_of_unknown(found, (Recorded(*row) for row in rows))


def counts_of_unknown(found: Replayable, recorded: Iterable[Recorded]) -> list[Checked]:
    """Return the counts of recorded decisions that are outside of all stretches, by shard and reason."""
    counts: Counter[tuple[str, str, bool]] = Counter()
    for row in recorded:
        if not any(is_in(stretch, row) for stretch in found.stretches):
            counts[row.shard, *_reason(found, row)] += 1
    return [
        Checked(
            shard=shard,
            after=-1,
            events=0,
            compared=0,
            not_recorded=0,
            differences=0,
            first=[],
            unknown=count,
            why=why,
            is_on_record=is_on_record,
        )
        for (shard, why, is_on_record), count in sorted(counts.items())
    ]


def _reason(found: Replayable, row: Recorded) -> tuple[str, bool]:
    """Return why a recorded decision cannot be replayed, and whether that loss is recorded."""
    shard = without_era(row.shard)
    if (loss := next((one for one in found.losses if one.shard == shard and one.has(row.offset)), None)) is not None:
        return loss.text, True
    unknown = next((one for one in found.unknown if is_in(one, row)), None)
    return ("their records are not archived", False) if unknown is None else (unknown.why, unknown.is_on_record)


def is_in(part: Stretch | Unknown, row: Recorded) -> bool:
    """Return whether a recorded decision is about a record of a stretch."""
    return part.shard_name == row.shard and part.first <= row.offset <= part.last


def recorded_in(
    period: Period, group_id: str | None = None, begins: Mapping[ControlPartition, int] = MappingProxyType({})
) -> str:
    """Return the SQL condition of the recorded decisions that a replay of a period compares.

    It expects the value ``$group_id`` if a group is named. Decisions about records before those in `begins` are left
    out; stretches contain no such decisions.
    """
    # Of the decisions before the start of the archived log, retention keeps only the latest about each subject.
    begun = [
        f"not (cause.topic = '{topic}' and cause.partition = {partition} and cause.offset < {first})"
        for (topic, partition), first in begins.items()
    ]
    return " and ".join([period.condition, *begun, *([] if group_id is None else ["group_id = $group_id"])])


def _value_of(group_id: str | None) -> dict[str, str]:
    return {} if group_id is None else {"group_id": group_id}


def _is_of(stretch: Stretch) -> str:
    """Return the SQL condition of the recorded decisions about records of a stretch."""
    return f"shard = '{stretch.shard_name}' and cause.offset between {stretch.first} and {stretch.last}"


def _asked(
    ledger: Ledger, period: Period, places: Iterable[ControlPartition] = ()
) -> dict[ControlPartition, tuple[int, int]]:
    """Return the shards with records in a period -> offsets of the first and the last of these records.

    `places`: the shards to include; none: all.

    Raises:
        InvalidUsage: there is no such record; the message names the period of the archived log.
        UnreadableTable: the table of records is empty, although there are decisions.
    """
    here = " or ".join(f"(topic = '{topic}' and partition = {partition})" for topic, partition in places) or "true"
    rows = ledger.rows(f"""
        select topic, partition, min(events.offset) as first_offset, max(events.offset) as last_offset
        from events
        where ({here}) and {period.condition}
        group by topic, partition
    """)
    if not rows:
        [log] = ledger.rows(f"select min(at_ms) as begin_ms, max(at_ms) as end_ms from events where {here}")
        if log.begin_ms is None and ledger.rows("select 1 from decisions limit 1"):
            what = "it has no record, although the table 'decisions' has decisions about records"
            raise unreadable("events", what, "`wakeroll repair` writes again what Kafka still has")
        there_is = "" if log.begin_ms is None else f"; it covers {EpochMs(log.begin_ms)} to {EpochMs(log.end_ms)}"
        raise InvalidUsage(f"the archived log has no record {period}{there_is}")
    return {(row.topic, row.partition): (row.first_offset, row.last_offset) for row in rows}
