"""Changes of the number of shards, as the newest snapshots show them, and replays over them."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from wakeroll_model.decisions import AnyDecision
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import Record, kind_of_topic
from wakeroll_model.resharding import grown
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import READABLE, decode_state
from wakeroll_pipeline.ledger.ledger import Ledger, any_of


class Step(NamedTuple):
    """One change of the number of partitions, for one of them."""

    offset: int
    """Offset of the first record that was decided with the new number."""
    before: int
    after: int
    at_ms: int
    """Log time of the last tick before, epoch ms."""


def steps_of(ledger: Ledger, places: Collection[ControlPartition] | None = None) -> dict[ControlPartition, list[Step]]:
    """Return the changes that concern each place, the oldest first; places that no change concerns are left out.

    Every change concerns all shards. So one snapshot is read if the number never changed.

    Args:
        ledger: the open ledger.
        places: shards that are of interest; None: all.
    """
    newest = _newest(ledger)
    if not newest:
        return {}
    first = min(newest)
    steps = _steps(ledger, {first: newest[first]})
    if not steps:
        return {}
    return _steps(ledger, {place: at for place, at in newest.items() if places is None or place in places})


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
    """A shard that is replayed over changes of the number of partitions."""

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


def _newest(ledger: Ledger) -> dict[ControlPartition, tuple[int, int]]:
    """Return place -> era and offset of its newest snapshot that can be read."""
    rows = ledger.rows(
        "select distinct topic, partition, era, snapshots.offset as at_offset from snapshots "
        "where version between $oldest and $newest",
        oldest=READABLE[0],
        newest=READABLE[-1],
    )
    newest: dict[ControlPartition, tuple[int, int]] = {}
    for row in rows:
        if kind_of_topic(row.topic) in ("groups", "queues"):
            place = (row.topic, row.partition)
            newest[place] = max((row.era, row.at_offset), newest.get(place, (0, -2)))
    return newest


def _steps(ledger: Ledger, newest: Mapping[ControlPartition, tuple[int, int]]) -> dict[ControlPartition, list[Step]]:
    wanted = [(*place, *at) for place, at in newest.items()]
    is_wanted, values = any_of(("topic", "partition", "era", "snapshots.offset"), wanted)
    rows = ledger.rows(
        f"select topic, partition, body from snapshots where version between $oldest and $newest and {is_wanted}",
        oldest=READABLE[0],
        newest=READABLE[-1],
        **values,
    )
    found = {}
    for row in rows:
        state = decode_state(row.body)
        numbers = [*(growth.before for growth in state.growths), state.partitions]
        steps = [
            Step(growth.offset, growth.before, after, growth.at_ms)
            for growth, after in zip(state.growths, numbers[1:], strict=True)
        ]
        if steps:
            found[row.topic, row.partition] = steps
    return found
