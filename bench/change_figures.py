"""The figures of group changes, and their chapter."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.handed_out import Effect, Kind
from bench.machine import Machine
from bench.text_tables import table
from wakeroll_model.config import COMMIT_INTERVAL_MS

CHANGES = Path(__file__).parent / "changes.json"

_HEADS = {
    "join": "A fourth consumer joins three",
    "leave": "The fourth consumer leaves",
    "crash": "The fourth consumer is killed",
}
_FIRSTS = {
    "join": "to its first message",
    "leave": "until its queues go on",
    "crash": "until its queues go on",
}


class Measured(Struct, frozen=True):
    """What changes did to one group."""

    name: str
    session_ms: int
    heartbeat_ms: int
    effects: dict[Kind, list[Effect]]
    lost: int
    """Messages that no consumer handed out."""


class Changes(Struct, frozen=True):
    """What `python -m bench.group_changes` found."""

    machine: Machine
    rounds: int
    queues: int
    per_second: int
    """Messages per second, for all queues together."""
    groups: list[Measured]


def section(found: Changes | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.group_changes`, on a quiet machine, takes a quarter of an hour.\n"
    kinds = [kind for kind in _HEADS if any(kind in group.effects for group in found.groups)]
    every_ms = found.queues * 1_000 / found.per_second
    each, commit_s = found.per_second / 4, COMMIT_INTERVAL_MS / 1_000
    tables = "\n".join(f"**{_HEADS[kind]}**\n\n{_table(kind, found.groups)}\n" for kind in kinds)
    return f"""\
Consumer processes of groups of wakeroll and of Kafka's own groups, one group after the other on one broker in one run,
while the observer and the jobs of wakeroll work. Each of {found.queues} queues gets a message every {every_ms:.0f} ms.
A fourth consumer joins three, leaves, joins again and is killed by SIGKILL; rounds per group: {found.rounds}. Consumers
of wakeroll have a [last will](last-will.md), except where the name says so; these are killed more often, because it
takes only seconds. The figures are from the consumers' own logs of what they handed out. Settings are the defaults, or
short sessions; then Kafka's consumers also have the fetch settings of `Consumer`. *Busy cores*: other processes, as
many as cores, never wait.

Session timeout and heartbeat interval are in seconds. Times are median / maximum, and begin when the new consumer
creates its client, begins to leave, or is killed. A *pause* is the longest time between two messages of a queue: *kept*
queues have the same owner before and after, *moved* ones do not. *Repeated* is the mean number of messages per change
that were handed out again. All groups commit every {commit_s:g} s, and the kills are distributed evenly over this time.
Without a last will, a crash repeats {each * commit_s / 2:.0f} messages on average: those of half an interval, {each:g}
per second.

{tables}
Lost messages, in all groups together: {sum(group.lost for group in found.groups)}.
"""


def summary(group: Measured) -> str:
    """Return the figures of one group in a few lines, for people who wait for the others."""
    lines = (
        f"  {kind}: {_seconds([one.first_s for one in effects])} {_FIRSTS[kind]}; "
        f"repeated: {sum(one.repeated for one in effects)}"
        for kind, effects in group.effects.items()
    )
    return "\n".join((*lines, f"  lost: {group.lost}"))


def _table(kind: str, groups: Iterable[Measured]) -> str:
    heads = ("group", "session", "heartbeat", "times", _FIRSTS[kind], "pause, kept", "pause, moved", "repeated")
    rows = [
        (
            group.name,
            f"{group.session_ms / 1_000:g}",
            f"{group.heartbeat_ms / 1_000:g}",
            f"{len(effects)}",
            _seconds([one.first_s for one in effects]),
            _seconds([one.kept_gap_s for one in effects]),
            _seconds([one.moved_gap_s for one in effects]),
            f"{sum(one.repeated for one in effects) / len(effects):.3g}",
        )
        for group in groups
        for name, effects in group.effects.items()
        if name == kind
    ]
    return table(heads, rows)


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f} s"
