"""Stretches of the archived log that can be replayed, each from a snapshot or the empty state, and those that cannot.

The functions query an open ledger (`wakeroll_pipeline.ledger.ledger`), in SQL that both engines run.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from msgspec import Struct, structs

from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record, shard_of
from wakeroll_model.resharding import number_of
from wakeroll_model.rows import SNAPSHOTS, SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE
from wakeroll_model.signing import OnRecord
from wakeroll_model.snapshot_proof import differences
from wakeroll_pipeline.ledger.archived_log import (
    Decided,
    Run,
    archived_runs,
    decided_eras,
    decided_until,
    highest_derived,
    windows,
)
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.losses import Loss, Range, losses_of, lost_decisions, unproven_decisions
from wakeroll_pipeline.ledger.shard_growth import GrowingShard, Step, steps_of
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, key_of, read_snapshots, snapshot_keys


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
    """Highest seq of this era that a row of `decisions`, `assignments` or `offsets` has; 0 if there is none."""
    due_ms: int | None = None
    """Log time up to which records have their decisions in the tables (epoch ms), because the log continues for
    `LATEST_MS` after it. None: not known, because a later era has taken over."""
    body: bytes | None = None
    """Bytes of the snapshot; None if era 1 begins with the empty state."""
    refused: Mapping[int, str] = {}
    """Offset -> recorded reason why that record's signature was rejected; offsets after `after`, up to `last`."""
    steps: Sequence[Step] = ()
    """Changes of the number of partitions in this shard."""
    snapshots: Mapping[int, str] = {}
    """Offset of the last record in each snapshot that the replay passes -> SHA-256 of its body, in hexadecimal; empty
    if they are not compared."""
    lost: Sequence[Range] = ()
    """Ranges of the decisions of this era that are recorded as lost."""
    unproven: Sequence[Range] = ()
    """Ranges of the decisions of this era with edited ones among them, as an operator has accepted."""

    @property
    def shard_name(self) -> str:
        """Name of the shard with its era, as in its decisions: ``groups-3.1``."""
        return _name((self.topic, self.partition), self.era)

    def shard(self, partitions: int) -> GrowingShard:
        """Return the shard in its state after record `after`; `partitions` is the present number of its topic."""
        number = self.steps[0].before if self.steps else partitions
        if self.body is not None:
            number = number_of(self.body)
        left = [step for step in self.steps if step.before >= number]
        shard = Shard(self.topic, self.partition, number, self.body, signatures=OnRecord(self.refused))
        return GrowingShard(shard, left)


class Unknown(Struct, frozen=True, kw_only=True):
    """Records of a shard that cannot be replayed, because the state before them is not known."""

    shard_name: str
    """Name of the shard with its era."""
    first: int
    last: int
    why: str
    """Reason, such as the missing records, as a part of a sentence."""
    is_on_record: bool = False
    """Whether the missing records are recorded as lost."""


class Replayable(NamedTuple):
    """Records that can be replayed and records that cannot, ordered by shard and offset."""

    stretches: list[Stretch]
    unknown: list[Unknown]
    losses: Sequence[Loss] = ()
    """Rows that are recorded as lost."""
    begins: Mapping[ControlPartition, int] = {}
    """Shards whose archived log retention has shortened, each with its first archived offset."""


class _Era(NamedTuple):
    """One era of a shard: it decided the records from `first` to `last`, if there are any."""

    number: int
    first: int
    last: int
    last_seq: int
    starts: list[int]
    """Offset of the last record in each of its intact snapshots, ascending.  A replay can begin after each of them.
    The first snapshot of a later era is the state with which it began."""
    overlaps: int
    """Last offset at which an earlier era decided another record; -1 if there is none."""


def stretches_of(ledger: Ledger, asked: Mapping[ControlPartition, tuple[int, int]]) -> Replayable:
    """Return the shortest stretches that replay the requested records.

    Snapshots of another version of the state machines, and damaged ones, are left out.  Era 1 begins with the empty
    state, a later era with its first snapshot.  After a gap in the archive, a replay begins with the next snapshot.

    Args:
        ledger: the open ledger.
        asked: shard -> the first and the last offset of the requested records.
    """
    decided, keys = decided_eras(ledger), snapshot_keys(ledger)
    logs = archived_runs(ledger, asked)
    losses = losses_of(ledger)
    lost, unproven = lost_decisions(losses), unproven_decisions(ledger)
    highest, due_ms = highest_derived(ledger), decided_until(ledger)
    newest = {place: max(one.era for one in its) for place, its in decided.items()}
    found = Replayable([], [], losses)

    def choose(damaged: Set[SnapshotKey]) -> list[SnapshotRow]:
        nonlocal found
        found = Replayable([], [], losses)
        for place, (first, last) in sorted(asked.items()):
            known = decided.get(place, [])
            # An era may read again records that earlier eras decided; their verdict on a signature stays valid.
            refused = {offset: why for era in known for offset, why in era.refused.items()}
            for era in _eras(known, [key for key in keys if key.place == place], damaged):
                for run in logs.get(place, ()):
                    begin, end = max(first, era.first, run.first), min(last, era.last, run.last)
                    if begin <= end:
                        _add(found, place, era, (begin, end), run, refused)
        return read_snapshots(ledger, {_start_of(one) for one in found.stretches})

    bodies = {key_of(row): row.body for row in intact(choose)}
    steps = steps_of(ledger, asked)
    return found._replace(
        stretches=[
            structs.replace(
                one,
                body=bodies.get(_start_of(one)),
                steps=steps.get((one.topic, one.partition), ()),
                last_seq=max(one.last_seq, highest.get(one.shard_name, 0)),
                lost=lost.get(one.shard_name, ()),
                unproven=unproven.get(one.shard_name, ()),
                due_ms=due_ms if one.era >= newest.get((one.topic, one.partition), 1) else None,
            )
            for one in found.stretches
        ]
    )


def differs(ledger: Ledger, stretch: Stretch, offset: int, states: Sequence[bytes]) -> list[str]:
    """Return the parts in which the snapshot at an offset differs from the possible states of a replay.

    If several states are possible, the one with the fewest differing parts is used; there is no difference if the
    snapshot equals one of them.
    """
    rows = read_snapshots(ledger, [SnapshotKey(stretch.topic, stretch.partition, stretch.era, offset)])
    parts = [differences(stretch.topic, row.body, state) for row in rows for state in states]
    return min(parts, key=len, default=[])


def with_snapshots(ledger: Ledger, found: Replayable) -> Replayable:
    """Return stretches with the snapshots that their replay passes."""
    digest = "sha256(body)" if ledger.engine == "duckdb" else "sha2(body, 256)"
    snapshots = [one for one in found.losses if one.table == SNAPSHOTS.name]
    passed: dict[tuple[str, int, int], dict[int, str]] = {}
    # Without these conditions, the states of all snapshots would be read.
    in_any = " or ".join(
        f"(topic = '{one.topic}' and partition = {one.partition} and era = {one.era} "
        f"and snapshots.offset > {one.after} and snapshots.offset <= {one.last})"
        for one in found.stretches
    )
    rows = ledger.stream(
        f"select topic, partition, era, snapshots.offset, {digest} from snapshots "
        f"where version between $oldest and $newest and ({in_any or 'false'})",
        oldest=READABLE[0],
        newest=READABLE[-1],
    )
    for topic, partition, era, offset, its_digest in rows:
        if any(one.shard == _name((topic, partition), era) and one.has(offset) for one in snapshots):
            continue
        passed.setdefault((topic, partition, era), {})[offset] = its_digest
    return found._replace(
        stretches=[
            structs.replace(
                one,
                snapshots={
                    offset: its_digest
                    for offset, its_digest in passed.get((one.topic, one.partition, one.era), {}).items()
                    if one.after < offset <= one.last
                },
            )
            for one in found.stretches
        ]
    )


def _start_of(stretch: Stretch) -> SnapshotKey:
    """Return the key of the snapshot with which a stretch begins; no such snapshot exists for the empty state."""
    return SnapshotKey(stretch.topic, stretch.partition, stretch.era, stretch.after)


def _eras(decided: Collection[Decided], snapshots: Iterable[SnapshotKey], damaged: Set[SnapshotKey]) -> list[_Era]:
    """Return the eras of a shard, with the records that each decided.

    An era that began without a snapshot, or with an old one, reads records again that the era before it has decided.
    These records belong to the earlier era. A damaged snapshot shows where an era began, but no replay begins with it.
    """
    known = {one.era: one for one in decided}
    taken: dict[int, list[SnapshotKey]] = {}
    for key in sorted(snapshots):
        taken.setdefault(key.era, []).append(key)
    eras: list[_Era] = []
    reached = -1
    for number in sorted({*known, *taken} or {1}):
        its, starts = known.get(number), [key.offset for key in taken.get(number, [])]
        begins = [*(start + 1 for start in starts[:1]), *([its.first] if its else [])]
        # The first era covers the log from its start, also before its first decision.
        first = max(reached + 1, min(begins)) if eras else 0
        overlaps = reached if eras and its and its.first <= reached else -1
        if eras:
            eras[-1] = eras[-1]._replace(last=first - 1)
        usable = [key.offset for key in taken.get(number, []) if key not in damaged]
        eras.append(_Era(number, first, _ENDLESS, its.last_seq if its else 0, usable, overlaps))
        reached = max(reached, its.last if its else -1)
    return eras


_ENDLESS = 2**63 - 1


def _add(
    found: Replayable,
    place: ControlPartition,
    era: _Era,
    asked: tuple[int, int],
    run: Run,
    refused: Mapping[int, str],
) -> None:
    """Add the requested records of an archived run: those after the nearest snapshot can be replayed, others cannot."""
    begin, end = asked
    shard = shard_of(*place)
    loss = next((one for one in found.losses if one.shard == shard and one.has(run.first - 1)), None)
    is_first = run.is_first and loss is None
    starts = [start for start in era.starts if start >= max(run.first - 1, era.overlaps)]
    if era.number == 1 and is_first:
        starts.insert(0, -1)
    after = max((start for start in starts if start < begin), default=None)
    if after is None:
        after = min((start for start in starts if start < end), default=None)
        is_on_record = False
        if era.overlaps >= 0:
            why = "the log was truncated, and the same offsets hold other records now"
        elif loss is not None:
            why, is_on_record = loss.text, True
        elif is_first:
            why = "no snapshot shows the state at the start of the era"
        else:
            why = f"records before {run.first} are not archived"
        last = end if after is None else after
        name = _name(place, era.number)
        found.unknown.append(Unknown(shard_name=name, first=begin, last=last, why=why, is_on_record=is_on_record))
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


def records_query(stretches: Collection[Stretch]) -> str:
    """Return the query of the archived records that a replay of these stretches needs, unordered.

    Its columns are those of `wakeroll_model.records.Record`, in this order.
    """
    places: dict[ControlPartition, list[Stretch]] = {}
    for stretch in stretches:
        places.setdefault((stretch.topic, stretch.partition), []).append(stretch)
    wanted = [
        f"(topic = '{topic}' and partition = {partition} and events.offset > {min(one.after for one in its)} "
        f"and events.offset <= {max(one.last for one in its)})"
        for (topic, partition), its in sorted(places.items())
    ]
    return (
        f"select topic, partition, events.offset, at_ms, key, value from events where {' or '.join(wanted) or 'false'}"
    )


def records_in_order(ledger: Ledger, stretch: Stretch) -> Iterator[Record]:
    """Yield the archived records that a replay of a stretch needs, in the order of their offsets.

    They are sorted in windows, so the memory does not grow with their number.
    """
    records = records_query([stretch])
    for first, last in windows(stretch.after + 1, stretch.last):
        for row in ledger.stream(f"{records} and events.offset between {first} and {last} order by events.offset"):
            yield Record(*row)


def _name(place: ControlPartition, era: int) -> str:
    return f"{shard_of(*place)}.{era}"
