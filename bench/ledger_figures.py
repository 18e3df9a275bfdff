"""Figures of queries to a whole ledger in both engines, and their growth with it."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

from bench.command_memory import Run
from bench.machine import Machine
from bench.text_tables import digits, table
from wakeroll_pipeline.ledger.view_queries import Engine

LEDGER = Path(__file__).parent / "ledger.json"

QUICK = {
    "groups": "`groups`",
    "describe": "`describe` of one group",
    "explain": "`explain` of one queue",
    "lag": "the view `lag` of all groups",
}
"""Questions of an operator -> what they are, for people."""
THOROUGH = {
    "replay": "`replay`: recompute and compare all decisions",
    "marts": "`marts`: first run",
    "marts_again": "`marts`: second run, after a few new events",
    "check": "`check`: every rule",
}
"""Commands that read the whole ledger -> what they are, for people."""
COMMANDS = QUICK | THOROUGH
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
    runs: dict[Engine, dict[str, Run]]
    """Engine -> command, see `COMMANDS` -> its run; an engine that was not measured is missing."""


class Growth(Struct, frozen=True):
    """What `python -m bench.ledger_questions` found."""

    machine: Machine
    groups: int
    partitions: int
    driver_memory: str
    sizes: list[Size]


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

Then each command runs as for a user, in a process of its own: in DuckDB, and with `--engine spark` and
{found.driver_memory} of heap. The times include the start. In brackets: how many times as long Spark takes; a dash
means that Spark was not measured with this size. The last columns show the ratio of DuckDB's times for ten times the
events.

{table(["seconds in DuckDB (Spark / DuckDB)", *events, *steps], _times(sizes))}

For comparison, a Spark process that only reads all of `events`, with the same session settings, takes
{", ".join(f"{digits(size.floor.run.seconds)} s" for size in sizes)}; of this, the start of Spark takes
{_range([size.floor.start_s for size in sizes])} s.

Memory is the highest resident memory of all processes together, in MiB.

{table(["MiB in DuckDB (in Spark)", *events], _memory(sizes))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _tables(sizes: Sequence[Size]) -> Iterator[list[str]]:
    yield ["seconds of the log", *(f"{size.second:,}" for size in sizes)]
    for name in sizes[0].tables:
        of_name = [size.tables[name] for size in sizes]
        yield [f"`{name}`", *(f"{one.rows:,} ({digits(one.size / 1e6)})" for one in of_name)]


def _times(sizes: Sequence[Size]) -> Iterator[list[str]]:
    for command, what in COMMANDS.items():
        yield [
            what,
            *(f"{digits(size.runs['duckdb'][command].seconds)} ({_times_spark(size, command)})" for size in sizes),
            *(_tenfold(one, other, command) for one, other in _steps(sizes)),
        ]


def _times_spark(size: Size, command: str) -> str:
    """Return how many times as long as DuckDB Spark takes for a command."""
    in_spark = size.runs.get("spark", {}).get(command)
    return "-" if in_spark is None else digits(in_spark.seconds / size.runs["duckdb"][command].seconds)


def _memory(sizes: Sequence[Size]) -> Iterator[list[str]]:
    for command, what in COMMANDS.items():
        yield [what, *(f"{_mib(size, 'duckdb', command)} ({_mib(size, 'spark', command)})" for size in sizes)]


def _mib(size: Size, engine: Engine, command: str) -> str:
    run = size.runs.get(engine, {}).get(command)
    return "-" if run is None else f"{run.together_mib:,.0f}"


def _steps(sizes: Sequence[Size]) -> list[tuple[Size, Size]]:
    return list(pairwise(sizes))


def _tenfold(one: Size, other: Size, command: str) -> str:
    """Return how many times as long ten times the events take, by two sizes that need not be ten times apart."""
    before, after = (size.runs["duckdb"][command].seconds for size in (one, other))
    tens = math.log10(other.events / one.events)
    return f"x {digits((after / before) ** (1 / tens))}"


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(digits(value) for value in (min(values), max(values))))
