"""Figures of queries to a whole ledger, and their growth with it, compared with a Spark session that only reads."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.command_memory import Run
from bench.machine import Machine
from bench.text_tables import digits, table

LEDGER = Path(__file__).parent / "ledger.json"

COMMANDS = {
    "replay": "`replay`: recompute and compare all decisions",
    "marts": "`marts`: first run",
    "marts_again": "`marts`: second run, after a few new events",
    "check": "`check`: every rule",
}
"""What is measured -> what it is, for people; in this order."""


class Stored(Struct, frozen=True):
    """What a table of the ledger holds."""

    rows: int
    size: int
    """Bytes of its files."""


class Floor(Struct, frozen=True):
    """What it takes to read all of `events` by Spark."""

    start_s: float
    """Until Spark is there and knows the tables, and to stop it again: it is part of every command."""
    read_s: float
    event_bytes: int
    """Of the values that were read."""
    run: Run


class Size(Struct, frozen=True):
    """A ledger of so many events, and what was asked of it."""

    events: int
    news: int
    """Events that `marts` finds when it runs once more."""
    second: int
    """Of the deployment's life, by the log."""
    appends: int
    """Batches that it was written in."""
    tables: dict[str, Stored]
    floor: Floor
    runs: dict[str, Run]
    """By `COMMANDS`."""

    def work_s(self, command: str) -> float:
        """Return the seconds of a command without those that every start takes."""
        return max(self.runs[command].seconds - self.floor.start_s, 0.0)


class Growth(Struct, frozen=True):
    """What `python -m bench.ledger_questions` found."""

    machine: Machine
    groups: int
    partitions: int
    driver_memory: str
    sizes: list[Size]


def read(path: Path = LEDGER) -> Growth | None:
    """Read the figures of the last run; None if there was none."""
    return msgspec.json.decode(path.read_bytes(), type=Growth) if path.exists() else None


def section(found: Growth | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.ledger_questions`, on a quiet machine, takes 45 minutes.\n"
    sizes = found.sizes
    events = [f"{size.events:,} events" for size in sizes]
    steps = [f"{one.events:,} to {other.events:,}" for one, other in _steps(sizes)]
    return f"""\
{found.groups:,} groups of one to three clients run on {2 * found.partitions} shards. They join, send heartbeats and
commits, some wait for messages, and each second one client restarts, leaves or crashes. `record` writes their events
and the decisions of the model in {sizes[-1].appends} appends; it snapshots every shard each ten minutes.

{table(["rows (MB)", *events], _tables(sizes))}

Then each command runs as for a user, in a process of its own with {found.driver_memory} of heap. The *floor* is a Spark
process that reads all of `events`, with the same session settings. The start of Spark takes
{_range([size.floor.start_s for size in sizes])} s of each time. The times include the start. The ratios in brackets, to
the floor, and those in the last columns do not. The last columns show the ratio of the times for ten times the events.

{table(["seconds (times the floor)", *events, *steps], _times(sizes))}

Memory is the highest resident memory of all processes together, in MiB. In brackets: the JVM, the command's own Python
process, and the largest of Spark's Python workers.

{table(["MiB (JVM, command, worker)", *events, *steps], _memory(sizes))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _tables(sizes: Sequence[Size]) -> Iterator[list[str]]:
    yield ["seconds of the log", *(f"{size.second:,}" for size in sizes)]
    for name in sizes[0].tables:
        of_name = [size.tables[name] for size in sizes]
        yield [f"`{name}`", *(f"{one.rows:,} ({digits(one.size / 1e6)})" for one in of_name)]


def _times(sizes: Sequence[Size]) -> Iterator[list[str]]:
    floors = [f"{digits(size.floor.read_s)} (1)" for size in sizes]
    grown = (_tenfold(one, other, one.floor.read_s, other.floor.read_s) for one, other in _steps(sizes))
    yield ["floor: read `events`", *floors, *grown]
    for command, what in COMMANDS.items():
        yield [
            what,
            *(f"{digits(size.runs[command].seconds)} ({_times_floor(size, command)})" for size in sizes),
            *(_tenfold(one, other, one.work_s(command), other.work_s(command)) for one, other in _steps(sizes)),
        ]


def _memory(sizes: Sequence[Size]) -> Iterator[list[str]]:
    of_floor = [size.floor.run for size in sizes]
    rows = [("floor: read `events`", of_floor)]
    rows += [(what, [size.runs[command] for size in sizes]) for command, what in COMMANDS.items()]
    for what, runs in rows:
        grown = (
            _tenfold(one, other, before.together_mib, after.together_mib)
            for (one, other), (before, after) in zip(_steps(sizes), pairwise(runs), strict=True)
        )
        yield [what, *map(_mib, runs), *grown]


def _mib(run: Run) -> str:
    return f"{run.together_mib:,.0f} ({run.jvm_mib:,.0f}, {run.command_mib:,.0f}, {run.worker_mib:,.0f})"


def _steps(sizes: Sequence[Size]) -> list[tuple[Size, Size]]:
    return list(pairwise(sizes))


def _times_floor(size: Size, command: str) -> str:
    return digits(size.work_s(command) / size.floor.read_s) if size.floor.read_s else ""


def _tenfold(one: Size, other: Size, before: float, after: float) -> str:
    """Return how many times as much ten times the events would take, by two sizes that need not be ten times apart."""
    if not before or not after:
        return ""
    tens = math.log10(other.events / one.events)
    return f"x {digits((after / before) ** (1 / tens))}"


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(digits(value) for value in (min(values), max(values))))
