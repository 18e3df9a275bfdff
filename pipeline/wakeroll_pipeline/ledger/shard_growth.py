"""Changes of the number of shards, from the newest snapshots, and replays that include such changes."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from wakeroll_model.decisions import AnyDecision
from wakeroll_model.entity_machines import MACHINES
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record, kind_of_topic
from wakeroll_model.resharding import grown
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import decode_state
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.stored_snapshots import SnapshotKey, intact, newest_of, read_snapshots, snapshot_keys


class Step(NamedTuple):
    """One change of the number of partitions, for one of them."""

    offset: int
    """Offset of the first record that was decided with the new number."""
    before: int
    after: int
    at_ms: int
    """Log time of the last tick before the change, epoch ms."""


def steps_of(ledger: Ledger, places: Collection[ControlPartition] | None = None) -> dict[ControlPartition, list[Step]]:
    """Return the changes that concern each place, the oldest first; places that no change concerns are left out.

    Every change concerns all shards. So one snapshot is read if the number never changed.

    Args:
        ledger: the open ledger.
        places: the shards to return; None: all.
    """
    keys = [key for key in snapshot_keys(ledger) if kind_of_topic(key.topic) in MACHINES]
    if not keys:
        return {}
    first = min(key.place for key in keys)
    steps = _steps(ledger, [key for key in keys if key.place == first])
    if not steps:
        return {}
    return _steps(ledger, [key for key in keys if places is None or key.place in places])


def number_at(steps: Mapping[ControlPartition, Sequence[Step]], now: int, at_ms: int | None) -> int:
    """Return the number of partitions at a moment of log time (epoch ms); None: now.

    >>> steps = {("wakeroll.groups", 0): [Step(offset=70, before=4, after=8, at_ms=5_000)]}
    >>> [number_at(steps, 8, at_ms) for at_ms in (4_999, 5_000, None)]
    [4, 8, 8]
    """
    if at_ms is None:
        return now
    later = [step for its in steps.values() for step in its if step.at_ms > at_ms]
    return min(later, key=lambda step: step.before).before if later else now


def numbers_of(steps: Mapping[ControlPartition, Sequence[Step]], now: int) -> set[int]:
    """Return all numbers of partitions so far; `now` is the present one."""
    return {now, *(step.before for its in steps.values() for step in its)}


class GrowingShard:
    """A shard that is replayed across changes of the number of partitions."""

    def __init__(self, shard: Shard, steps: Sequence[Step]) -> None:
        """Begin with a state, and the changes that follow it."""
        self.shard = shard
        self._steps = list(steps)

    def apply(self, record: Record) -> list[AnyDecision]:
        """Apply the next record; the number changes first, if it was decided with another one."""
        while self._steps and record.offset >= self._steps[0].offset:
            step = self._steps.pop(0)
            self.shard = grown(self.shard, step.offset, step.after)
        return self.shard.apply(record)

    def body(self) -> bytes:
        """Return the state after the records so far."""
        return self.shard.body()

    def bodies(self) -> list[bytes]:
        """Return the possible states of a snapshot after the last record.

        If the number of partitions changes before the next record, these are the state before the change and the state
        after it.
        """
        body = self.shard.body()
        if not self._steps or self._steps[0].offset != self.shard.offset + 1:
            return [body]
        step = self._steps[0]
        copy = self.shard.continued(body, step.before)
        return [body, grown(copy, step.offset, step.after).body()]


def _steps(ledger: Ledger, keys: Sequence[SnapshotKey]) -> dict[ControlPartition, list[Step]]:
    """Return the changes in the newest of these snapshots of each shard that is not damaged."""
    found = {}
    for row in intact(lambda damaged: read_snapshots(ledger, newest_of(keys, damaged))):
        state = decode_state(row.body)
        numbers = [*(growth.before for growth in state.growths), state.partitions]
        steps = [
            Step(growth.offset, growth.before, after, growth.at_ms)
            for growth, after in zip(state.growths, numbers[1:], strict=True)
        ]
        if steps:
            found[row.topic, row.partition] = steps
    return found
