"""The snapshots of a ledger: every reader reads and verifies them here. A damaged one is left out, with a warning."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import NamedTuple

from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import shard_of
from wakeroll_model.rows import SnapshotRow
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE
from wakeroll_model.snapshot_proof import problem_in, proven
from wakeroll_pipeline.ledger.ledger import Ledger, any_of

log = logging.getLogger("wakeroll.snapshots")


class SnapshotKey(NamedTuple):
    """The identity of a snapshot."""

    topic: str
    partition: int
    era: int
    offset: int
    """Offset of the last record that the state includes; -1 before the first."""

    @property
    def place(self) -> ControlPartition:
        """Control partition of the shard."""
        return self.topic, self.partition

    def __str__(self) -> str:
        """Return the snapshot in words: ``the snapshot of groups-3 at offset 1234, era 1``."""
        return f"the snapshot of {shard_of(*self.place)} at offset {self.offset}, era {self.era}"


def key_of(row: SnapshotRow) -> SnapshotKey:
    """Return the identity of a snapshot."""
    return SnapshotKey(row.topic, row.partition, row.era, row.offset)


def snapshot_of(shard: Shard, offset: int | None = None, body: bytes | None = None) -> SnapshotRow:
    """Return the row of the state of a shard, with its hash; `offset` and `body`: of an earlier moment."""
    row = SnapshotRow(
        topic=shard.topic,
        partition=shard.partition,
        offset=shard.offset if offset is None else offset,
        era=shard.era,
        version=shard.version,
        at_ms=shard.now_ms,
        body=shard.body() if body is None else body,
    )
    return proven(row)


_warned: set[tuple[SnapshotKey, str]] = set()
"""Damaged snapshots that this process has warned of, with the reason."""


def intact(choose: Callable[[Set[SnapshotKey]], Iterable[SnapshotRow]]) -> list[SnapshotRow]:
    """Return the snapshots that a reader chooses, none of which is damaged.

    For each damaged one, this process logs one warning, and the reader chooses again.

    Args:
        choose: receives the damaged snapshots that were found so far, which it must leave out; returns its choice.
    """
    damaged: set[SnapshotKey] = set()
    while True:
        rows = list(choose(damaged))
        found = {key_of(row): problem for row in rows if (problem := problem_in(row))}
        if not found:
            return rows
        assert not found.keys() & damaged, "damaged snapshots are left out"
        for key, problem in found.items():
            if (key, problem) not in _warned:
                _warned.add((key, problem))
                log.warning(
                    "%s is damaged in the table snapshots: %s. It is not used; the snapshot before it is, and the log "
                    "from there on. Run `wakeroll repair` to make it again",
                    key,
                    problem,
                )
        damaged |= found.keys()


def snapshot_keys(ledger: Ledger) -> list[SnapshotKey]:
    """Return the snapshots whose versions this release reads, sorted."""
    rows = ledger.stream(
        "select distinct topic, partition, era, snapshots.offset from snapshots "
        "where version between $oldest and $newest",
        oldest=READABLE[0],
        newest=READABLE[-1],
    )
    return sorted(SnapshotKey(*row) for row in rows)


def read_snapshots(ledger: Ledger, keys: Collection[SnapshotKey]) -> list[SnapshotRow]:
    """Return some snapshots, one row per key; they are not verified. A snapshot that does not exist is left out."""
    is_wanted, values = any_of(_KEY, sorted(keys))
    rows = ledger.stream(f"select {_COLUMNS} from snapshots where {is_wanted}", **values) if keys else ()
    return list({key_of(row): row for row in map(row_of, rows)}.values())


def newest_of(keys: Iterable[SnapshotKey], damaged: Set[SnapshotKey] = frozenset()) -> list[SnapshotKey]:
    """Return the newest undamaged snapshot of each shard."""
    newest: dict[ControlPartition, SnapshotKey] = {}
    for key in keys:
        if key not in damaged:
            newest[key.place] = max(key, newest.get(key.place, key))
    return list(newest.values())


def row_of(values: Sequence[object]) -> SnapshotRow:
    """Return a row of the table, from its values in the order of the table's columns."""
    named = dict(zip(SnapshotRow.__struct_fields__, values, strict=True))
    return SnapshotRow(**named | {"body": bytes(named["body"])})  # type: ignore[call-overload]


_KEY = ("topic", "partition", "era", "snapshots.offset")
_COLUMNS = ", ".join(f"snapshots.{name}" for name in SnapshotRow.__struct_fields__)
