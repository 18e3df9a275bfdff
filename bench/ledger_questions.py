"""The cost of queries to a whole ledger of 1,000 groups and 10,000 to 1,000,000 events, in DuckDB and in Spark."""

import math
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from bench.frame import Bench, Chapter, numbers, option, whole
from bench.growing_ledger import GrowingLedger, Stored, ask, log_of, stored
from bench.machine import Machine
from bench.process_usage import Command
from bench.text_tables import digits, table
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.settings import Settings

SIZES = (10_000, 100_000, 1_000_000)
APPENDS = 12
"""So that one of the largest ledger has as much as `record` takes at once while it catches up."""
NEWS = 100
"""One event in so many comes after the first `marts`, for the second one to find."""

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

_ASKED: Mapping[str, Sequence[str]] = {
    "groups": ("groups",),
    "describe": ("describe", "group-0003"),
    "explain": ("explain", "--group", "group-0003", "--queue", "orders-03-0"),
    "lag": ("sql", "select group_id, sum(lag_messages) as messages from lag group by group_id"),
    "replay": ("replay",),
    "check": ("check",),
    "marts": ("marts",),
    "marts_again": ("marts",),
}
"""Command, see `COMMANDS` -> its arguments; in the order in which they run."""
_WITHOUT_ENGINE = ("groups", "describe", "explain")
"""Commands that read a part of the tables: the newest snapshots and the records since, or the files of some hours."""


class Floor(Struct, frozen=True):
    """What it takes to read all of `events` by Spark."""

    start_s: float
    """Until Spark is there and knows the tables, and to stop it again: it is part of every command."""
    run: Command


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
    runs: dict[Engine, dict[str, Command]]
    """Engine -> command, see `COMMANDS` -> its run; an engine that was not measured is missing."""


class Growth(Struct, frozen=True):
    """What `ledger_questions` found."""

    machine: Machine
    groups: int
    partitions: int
    driver_memory: str
    sizes: list[Size]


def section(found: Growth) -> str:
    """Return the chapter of these figures."""
    sizes = found.sizes
    events = [f"{size.events:,} events" for size in sizes]
    steps = [f"{one.events:,} to {other.events:,}" for one, other in pairwise(sizes)]
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
            *(_tenfold(one, other, command) for one, other in pairwise(sizes)),
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
    return "-" if run is None else f"{run.memory_mib:,.0f}"


def _tenfold(one: Size, other: Size, command: str) -> str:
    """Return how many times as long ten times the events take, by two sizes that need not be ten times apart."""
    before, after = (size.runs["duckdb"][command].seconds for size in (one, other))
    tens = math.log10(other.events / one.events)
    return f"x {digits((after / before) ** (1 / tens))}"


def _range(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(digits(value) for value in (min(values), max(values))))


def measure(given: Namespace) -> Growth:
    """Make a ledger of each size, and ask it everything; Spark only about ledgers of up to so many events."""
    settings = Settings()
    sizes = [
        _size(given.folder / str(events), events, given.groups, with_spark=events <= given.spark_up_to)
        for events in given.sizes
    ]
    return Growth(given.machine, given.groups, settings.partitions, settings.driver_memory, sizes)


def _size(folder: Path, events: int, groups: int, *, with_spark: bool) -> Size:
    print(f"{events:,} events", flush=True)
    homes: dict[Engine, Settings] = {"duckdb": Settings(home=str(folder / "duckdb"))}
    home = homes["duckdb"]
    ledger = make_ledger(home, events, groups)
    second, appends = ledger.second, ledger.appends
    tables = {name: stored(home.warehouse.path / name) for name in TABLES}
    if with_spark:
        homes["spark"] = structs.replace(home, home=str(folder / "spark"))
        shutil.copytree(home.home, homes["spark"].home)
    reading = ask(home, "floor", ("reading", home.home), "bench.spark_programs")
    read_s = msgspec.json.decode(log_of(home, "floor").read_bytes().splitlines()[-1], type=float)
    floor = Floor(round(reading.seconds - read_s, 2), reading)
    runs: dict[Engine, dict[str, Command]] = {engine: {} for engine in homes}
    for engine, its in homes.items():
        for name, arguments in _ASKED.items():
            if name == "marts_again":
                ledger.grow(events + events // NEWS)
                for table_name in TABLES if its is not home else ():  # the copy gets the same new files
                    copied = its.warehouse.path / table_name
                    shutil.copytree(home.warehouse.path / table_name, copied, dirs_exist_ok=True)
            by_engine = () if name in _WITHOUT_ENGINE else ("--engine", engine)
            if by_engine or engine == "duckdb":
                runs[engine][name] = ask(its, f"{engine} {name}", (*arguments, *by_engine))
    return Size(events, events // NEWS, second, appends, tables, floor, runs)


def make_ledger(settings: Settings, events: int, groups: int) -> GrowingLedger:
    """Make a ledger whose tables are those of `run`, with so many events in as many appends as `record` needs."""
    Path(settings.home).mkdir(parents=True)
    ask(settings, "tables", ("tables", settings.home), "bench.spark_programs")
    ledger = GrowingLedger(settings, groups, snapshot_s=settings.snapshot_interval_ms // 1_000)
    for number in range(1, APPENDS + 1):
        ledger.grow(events * number // APPENDS)
    return ledger


BENCH = Bench(
    "ledger_questions",
    "Questions to ledgers of up to 1,000,000 events, in both engines.",
    "45 minutes",
    measure,
    options=(
        option("--sizes", type=numbers, default=SIZES, help="events, by comma"),
        option("--spark-up-to", type=int, default=SIZES[-1], help="most events that Spark is asked about"),
        option("--groups", type=whole, default=1_000, help="number of groups"),
    ),
    chapters=(Chapter("A whole ledger", section),),
    figures=Growth,
    file="ledger.json",
    run="The run of a whole ledger",
)
