"""Joins, leaves and crashes of consumers in wakeroll's groups, compared with Kafka's own groups on the same broker.

A round takes 15 minutes, mostly because sessions must end; it has 30 kills of consumers with last wills.
"""

import statistics
import uuid
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from bench.changing_group import BROKER_SETTINGS, CASES, PER_SECOND, QUEUES, Case, ChangingGroup
from bench.consumer_logs import Change, Effect, Kind, effect_of
from bench.figures import Columns, table_of
from bench.frame import Bench, Chapter, option, whole
from bench.machine import Machine
from bench.running_system import running_system, settings_in
from wakeroll.connection import Connection
from wakeroll_model.config import COMMIT_INTERVAL_MS
from wakeroll_pipeline.local.broker import EmbeddedBroker

COMMIT_S = COMMIT_INTERVAL_MS / 1_000
"""Interval of commits of all groups, also of Kafka's (s). The kills are distributed evenly over it, because a crash
repeats what was handled since the last commit."""
FIRST = ("c1", "c2", "c3")
NEWCOMER = "c4"

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
    """What `group_changes` found."""

    machine: Machine
    rounds: int
    queues: int
    per_second: int
    """Messages per second, for all queues together."""
    groups: list[Measured]


def section(found: Changes) -> str:
    """Return the chapter of these figures."""
    kinds = [kind for kind in _HEADS if any(kind in group.effects for group in found.groups)]
    every_ms = found.queues * 1_000 / found.per_second
    each, commit_s = found.per_second / 4, COMMIT_S
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
    rows = [(group, effects) for group in groups for name, effects in group.effects.items() if name == kind]
    columns: Columns[tuple[Measured, list[Effect]]] = (
        ("group", lambda row: row[0].name),
        ("session", lambda row: f"{row[0].session_ms / 1_000:g}"),
        ("heartbeat", lambda row: f"{row[0].heartbeat_ms / 1_000:g}"),
        ("times", lambda row: f"{len(row[1])}"),
        (_FIRSTS[kind], lambda row: _seconds([one.first_s for one in row[1]])),
        ("pause, kept", lambda row: _seconds([one.kept_gap_s for one in row[1]])),
        ("pause, moved", lambda row: _seconds([one.moved_gap_s for one in row[1]])),
        ("repeated", lambda row: f"{sum(one.repeated for one in row[1]) / len(row[1]):.3g}"),
    )
    return table_of(columns, rows)


def _seconds(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} / {max(values):.2f} s"


def measure(given: Namespace) -> Changes:
    """Let each group have its rounds, one group after the other."""
    folder = given.folder
    with (
        EmbeddedBroker(folder / "broker", settings=BROKER_SETTINGS) as broker,
        running_system(settings_in(folder, "changes", broker)) as connection,
    ):
        groups = [_measure(connection, folder, case, given.rounds, given.limit) for case in given.only]
    return Changes(given.machine, given.rounds, QUEUES, PER_SECOND, groups)


def _measure(connection: Connection, folder: Path, case: Case, rounds: int, limit_s: float) -> Measured:
    print(f"{case.name} ...", flush=True)
    name = f"changes-{uuid.uuid4().hex[:6]}"
    changes: list[Change] = []
    with ChangingGroup(connection, case, name, folder / name, limit_s) as group:
        group.start(FIRST)
        for number in range(rounds):
            changes += [group.join(NEWCOMER), group.leave(NEWCOMER)]
            for kill in range(case.kills):
                changes.append(group.join(NEWCOMER))
                changes.append(group.crash(NEWCOMER, (number + kill / case.kills) * COMMIT_S / rounds))
        lost = group.finish()
    handed = group.handed
    effects: dict[Kind, list[Effect]] = {}
    for change in changes:
        effects.setdefault(change.kind, []).append(effect_of(change, handed))
    measured = Measured(case.name, case.session_ms, case.heartbeat_ms, effects, lost)
    print(summary(measured), flush=True)
    return measured


def _problems(found: Changes) -> list[str]:
    return [f"{group.name}: {group.lost} messages were lost" for group in found.groups if group.lost]


def _cases(text: str) -> list[Case]:
    """Return the groups whose names contain a text."""
    cases = [case for case in CASES if text in case.name]
    if not cases:
        raise ArgumentTypeError(f"no group has {text!r} in its name: {', '.join(case.name for case in CASES)}")
    return cases


BENCH = Bench(
    "group_changes",
    "Joins, leaves and crashes beside Kafka's own groups.",
    "an hour",
    measure,
    options=(
        option("--rounds", type=whole, default=1, help="of each group"),
        option("--only", type=_cases, default="", help="only groups whose name contains this text"),
        option("--limit", type=float, default=180.0, help="longest step, seconds"),
    ),
    chapters=(Chapter("Joins, leaves and crashes", section),),
    figures=Changes,
    file="changes.json",
    run="The run of group changes",
    differs=lambda given: len(given.only) < len(CASES),
    problems=_problems,
)
