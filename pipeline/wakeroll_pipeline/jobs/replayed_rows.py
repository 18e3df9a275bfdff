"""Decisions and snapshots that a replay of `events` restores, as far as existing rows prove them.

A replay alone proves nothing: if an event was lost or edited, or this release decided differently, it would lead to
other decisions. So a missing decision counts as proven if, later in the same stretch, the replay leads to exactly a row
that still exists: a recorded decision, a row that was derived from a missing decision, or a snapshot. Results after the
first contradiction are dropped.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from hashlib import sha256
from typing import Any, NamedTuple

from msgspec import structs

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.partitioner import ControlPartition, partition_of
from wakeroll_model.records import Record, kind_of_topic, shard_of
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, OFFSETS, DecisionRow, SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import decode_state
from wakeroll_model.snapshot_proof import problem_in, proven
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.replay_stretches import Stretch, differs, records_in_order, stretches_of, with_snapshots
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, key_of, newest_of, read_snapshots, snapshot_keys
from wakeroll_pipeline.operators.ledger_rows import (
    KafkaRecord,
    ReadDecision,
    assignment_rows,
    offset_rows,
    read_decisions,
)
from wakeroll_pipeline.operators.shard_operator import addressed

_DERIVED = ((ASSIGNMENTS, assignment_rows), (OFFSETS, offset_rows))


class Replayed(NamedTuple):
    """The result for one stretch: records of one shard that one era decided, archived without a gap."""

    shard: str
    """Name of the shard with its era."""
    missing: list[DecisionRow]
    """Missing decisions that are proven, ordered by seq. `published_ms` is the log time of the record that caused the
    decision, because the true time is lost; it is earlier by some milliseconds."""
    unproven: list[int]
    """Numbers of the other missing decisions."""
    damaged: list[tuple[SnapshotRow, SnapshotRow | None]]
    """Damaged and missing snapshots, each with its replacement from the replay; None if an earlier decision differs, or
    is missing and not proven. A missing snapshot has no body."""


def replay_all(ledger: Ledger, partitions: int, lost: Sequence[SnapshotRow] = ()) -> list[Replayed]:
    """Replay the archived log of all shards, and return the missing rows, sorted by shard.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        lost: snapshots that the table lacks, without their states; they count as damaged.

    Raises:
        InvalidUsage: the tables were made with another number of partitions.
    """
    ends = _ends(ledger)
    if strange := [place for place in ends if place[1] >= partitions]:
        raise InvalidUsage(
            f"the tables have records of partition {max(strange)[1]}, but this deployment has {partitions} partitions; "
            "set the number with which the tables were made, with WAKEROLL_PARTITIONS or --config"
        )
    damaged = _damaged(ledger) | {key_of(row): row for row in lost}
    highest = _highest(ledger, damaged.keys())
    found, passed = [], set[SnapshotKey]()
    for stretch in with_snapshots(ledger, stretches_of(ledger, ends)).stretches:
        its = {
            key.offset: row
            for key, row in damaged.items()
            if (key.topic, key.partition, key.era) == (stretch.topic, stretch.partition, stretch.era)
            and stretch.after < key.offset <= stretch.last
        }
        passed |= {key_of(row) for row in its.values()}
        found.append(_StretchReplay(ledger, stretch, partitions, its, highest.get(stretch.shard_name, 0)).run())
    outside = [row for key, row in damaged.items() if key not in passed]
    found += [Replayed(f"{shard_of(row.topic, row.partition)}.{row.era}", [], [], [(row, None)]) for row in outside]
    return sorted(found, key=lambda one: one.shard)


class _StretchReplay:
    """The replay of one stretch, compared with the existing rows."""

    def __init__(
        self, ledger: Ledger, stretch: Stretch, partitions: int, damaged: Mapping[int, SnapshotRow], highest: int
    ) -> None:
        self._ledger = ledger
        self._stretch = stretch
        self._shard = stretch.shard(partitions)
        self._damaged = damaged
        self._highest = highest
        """Highest number of a decision that was certainly made."""
        self._first = self._shard.shard.seq + 1
        self._lost = _without_decision(ledger, stretch.shard_name)
        self._waiting: list[DecisionRow] = []
        """Missing decisions that no later row has proven so far."""
        self._states: dict[int, SnapshotRow] = {}
        self._found = Replayed(stretch.shard_name, [], [], [])

    def run(self) -> Replayed:
        """Replay until a row contradicts."""
        numbers: list[int] = []
        recorded = self._recorded(numbers)
        last = next(recorded, None)
        for record in records_in_order(self._ledger, self._stretch):
            for decision in self._shard.apply(record):
                if last is not None and last[0] < decision.seq:
                    return self._result(numbers, recorded)
                if last is not None and last[0] == decision.seq:
                    if last[1] != encode_decision(decision).decode():
                        return self._result(numbers, recorded)
                    last = next(recorded, None)
                    self._prove()
                elif not self._note_missing(decision, record):
                    return self._result(numbers, recorded)
            if not self._pass_snapshot(record.offset):
                return self._result(numbers, recorded)
        return self._result(numbers, recorded)

    def _recorded(self, numbers: list[int]) -> Iterator[tuple[int, str]]:
        """Yield the recorded decisions of the shard's era from the first one of the stretch on; note their numbers."""
        query = f"select seq, json from decisions where shard = '{self._stretch.shard_name}' and seq >= {self._first}"
        seen = 0
        for seq, json in self._ledger.stream(f"{query} order by era, seq"):
            if seq != seen:  # else it is doubled
                numbers.append(seq)
                yield seq, json
            seen = seq

    def _note_missing(self, decision: AnyDecision, record: Record) -> bool:
        """Note a decision that is not recorded; return False if a row that was made from it contradicts."""
        row = _row_of(decision, record, self._shard.shard)
        self._waiting.append(row)
        left = self._lost.get(row.seq)
        if left is None:
            return True
        read = read_again(row)
        if left not in [placed.row for _, make in _DERIVED for placed in make([read])]:
            return False
        self._prove()
        return True

    def _pass_snapshot(self, offset: int) -> bool:
        """Compare the state with the snapshot at an offset, if there is one; return False if it differs."""
        if (bad := self._damaged.get(offset)) is not None:
            # The state before a change of the number of partitions would never be used.
            body = self._shard.bodies()[-1]
            its = decode_state(body)
            if (its.era, its.offset) == (bad.era, bad.offset):
                version = self._shard.shard.version
                self._states[offset] = proven(
                    structs.replace(bad, version=version, at_ms=self._shard.shard.now_ms, body=body)
                )
            return True
        digest = self._stretch.snapshots.get(offset)
        if digest is None:
            return True
        states = self._shard.bodies()
        is_equal = digest in [sha256(state).hexdigest() for state in states]
        if not is_equal and differs(self._ledger, self._stretch, offset, states):
            return False
        self._prove()
        return True

    def _prove(self) -> None:
        self._found.missing.extend(self._waiting)
        self._waiting.clear()

    def _result(self, numbers: list[int], recorded: Iterator[object]) -> Replayed:
        for _ in recorded:  # their numbers
            pass
        there = {*numbers, *(row.seq for row in self._found.missing)}
        unproven = [seq for seq in range(self._first, self._highest + 1) if seq not in there]
        found = self._found._replace(unproven=unproven)
        for offset, bad in sorted(self._damaged.items()):
            state = self._states.get(offset)
            is_proven = state is not None and not any(seq <= decode_state(state.body).seq for seq in unproven)
            found.damaged.append((bad, state if is_proven else None))
        return found


def read_again(row: DecisionRow) -> ReadDecision:
    """Return a decision as `record` reads it, to derive rows from it."""
    return ReadDecision(row, 0, None, row.json.encode(), (), (0, row.seq), True)


def _row_of(decision: AnyDecision, record: Record, shard: Shard) -> DecisionRow:
    """Return the row of a decision, published when the record that caused it was appended."""
    value = encode_decision(decision)
    topics = Topics()
    _, key, _ = next(addressed(decision, value, topics, shard.name))
    partition = partition_of(key, shard.partitions)
    [read] = read_decisions([KafkaRecord(topics.decisions, partition, 0, record.timestamp_ms, key, value)])
    return read.row


def _ends(ledger: Ledger) -> dict[ControlPartition, tuple[int, int]]:
    """Return the place of each shard -> first and last archived offset."""
    rows = ledger.stream("select topic, partition, min(events.offset), max(events.offset) from events group by 1, 2")
    return {
        (topic, partition): (first, last) for topic, partition, first, last in rows if kind_of_topic(topic) in MACHINES
    }


def _damaged(ledger: Ledger) -> dict[SnapshotKey, SnapshotRow]:
    """Return the damaged snapshots; one state is in memory at a time."""
    found = {}
    for key in snapshot_keys(ledger):
        for row in read_snapshots(ledger, [key]):
            if problem_in(row):
                found[key] = row
    return found


def _highest(ledger: Ledger, damaged: Set[SnapshotKey]) -> dict[str, int]:
    """Return shard with era -> highest number of a decision in any table."""
    highest: dict[str, int] = {}
    for table in (DECISIONS, ASSIGNMENTS, OFFSETS):
        for shard, seq in ledger.stream(f"select shard, max(seq) from {table.name} group by shard"):
            highest[shard] = max(seq, highest.get(shard, 0))
    for row in read_snapshots(ledger, newest_of(snapshot_keys(ledger), damaged)):
        shard = f"{shard_of(row.topic, row.partition)}.{row.era}"
        highest[shard] = max(decode_state(row.body).seq, highest.get(shard, 0))
    return highest


def _without_decision(ledger: Ledger, shard: str) -> dict[int, Any]:
    """Return number -> row of `assignments` or `offsets` whose decision is missing."""
    found: dict[int, Any] = {}
    for table, _ in _DERIVED:
        fields = table.row.__struct_fields__
        columns = ", ".join(f"{table.name}.{name}" for name in fields)
        rows = ledger.stream(
            f"select {columns} from {table.name} where shard = '{shard}' and not exists (select 1 from decisions "
            f"where decisions.shard = {table.name}.shard and decisions.seq = {table.name}.seq)"
        )
        for values in rows:
            named = dict(zip(fields, values, strict=True))
            found[named["seq"]] = table.row(**named)
    return found
