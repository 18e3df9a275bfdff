"""Commands that read a whole ledger: `ledger_questions` in both engines, `long_ledgers` on up to 10,000,000 events.

`long_ledgers` needs 5 GB of disk, which it frees. It counts CPU time, so its figures count on a busy machine too.
"""

import math
import shutil
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise

from msgspec import Struct, structs

from bench.figures import digits, table
from bench.frame import Bench, Chapter, numbers, option, whole
from bench.growing_ledger import GrowingLedger, Stored, ask, stored
from bench.machine import Machine
from bench.process_usage import Command
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.settings import Settings

NEWS = 100
"""One event in so many comes after the first `marts`, for the second one to find."""
COMMANDS = {
    "groups": "`groups`",
    "describe": "`describe` of one group",
    "explain": "`explain` of one queue",
    "lag": "the view `lag` of all groups",
    "replay": "`replay`: recompute and compare all decisions",
    "marts": "`marts`: first run",
    "marts_again": "`marts`: second run, after a few new events",
    "check": "`check`: every rule",
}
"""What is measured -> what it is, for people; in this order."""
LONG = {"check": COMMANDS["check"], "replay": "`replay`: all decisions, and all snapshots"}

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
_ASKED_LONG: Mapping[str, Sequence[str]] = {"check": ("check", "--no-docs"), "replay": ("replay",)}
_WITHOUT_ENGINE = ("groups", "describe", "explain")
"""Commands that read a part of the tables: the newest snapshots and the records since, or the files of some hours."""


class Size(Struct, frozen=True):
    """A ledger of so many events, and what was asked of it."""

    events: int
    second: int
    """Of the deployment's life, by the log."""
    appends: int
    """Batches that it was written in."""
    tables: dict[str, Stored]
    runs: dict[Engine, dict[str, Command]]
    """Engine -> command, see `COMMANDS` -> its run; an engine that was not measured is missing."""


class Growth(Struct, frozen=True):
    """What either measurement found."""

    machine: Machine
    groups: int
    partitions: int
    driver_memory: str
    sizes: list[Size]


def section(found: Growth) -> str:
    """Return the chapter of `ledger_questions`."""
    sizes = found.sizes
    events = _events(sizes)
    steps = [f"{one.events:,} to {other.events:,}" for one, other in pairwise(sizes)]
    return f"""\
{found.groups:,} groups of one to three clients run on {2 * found.partitions} shards. They join, send heartbeats and
commits, some wait for messages, and each second one client restarts, leaves or crashes. The program makes their events
and the decisions of the model, without a broker and without Spark. The sink that `record` has (`ArrowSink`) appends
them in {sizes[-1].appends} appends, with snapshots of every shard.

{table(["rows (MB)", *events], _tables(sizes))}

Then each command runs as for a user, in a process of its own: in DuckDB, and with `--engine spark` and
{found.driver_memory} of heap. The times include the start. In brackets: how many times as long Spark takes; a dash
means that Spark was not measured with this size. The last columns show the ratio of DuckDB's times for ten times the
events.

{table(["seconds in DuckDB (Spark / DuckDB)", *events, *steps], _times(sizes))}

Memory is the highest resident memory of all processes together, in MiB.

{table(["MiB in DuckDB (in Spark)", *events], _memory(sizes))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def long_section(found: Growth) -> str:
    """Return the chapter of `long_ledgers`."""
    sizes, events = found.sizes, _events(found.sizes)
    totals = {
        "rows of all tables": [f"{_total(size, 'rows'):,}" for size in sizes],
        "files": [f"{_total(size, 'files'):,}" for size in sizes],
        "MB of files": [digits(_total(size, "size") / 1e6) for size in sizes],
        "seconds of the log": [f"{size.second:,}" for size in sizes],
    }
    return f"""\
The deployment is that of the chapter before: {found.groups:,} groups on {2 * found.partitions} shards. One append has a
minute of its log, and the tables have their chains. `check` and `replay` read all rows, in DuckDB.

{table(["ledger", *events], ([head, *cells] for head, cells in totals.items()))}

CPU is that of all processes of a command, and of all cores. Memory is the highest resident memory of all processes
together.

{table(["command", *events], _costs(sizes))}

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
Other programs ran on both cores most of the time, so CPU times are given: they and memory depend little on the load.
A `replay` has a process per core; about 400 MiB of each are its own.
"""


def _events(sizes: Sequence[Size]) -> list[str]:
    return [f"{size.events:,} events" for size in sizes]


def _total(size: Size, what: str) -> int:
    return sum(getattr(one, what) for one in size.tables.values())


def _costs(sizes: Sequence[Size]) -> Iterator[list[str]]:
    for name, text in LONG.items():
        its = [(size.runs["duckdb"][name], _total(size, "rows")) for size in sizes]
        yield [f"{text}: MiB", *(f"{run.memory_mib:,.0f}" for run, _ in its)]
        yield ["its seconds of CPU", *(digits(run.cpu_s) for run, _ in its)]
        yield ["its µs of CPU per row", *(digits(run.cpu_s * 1e6 / rows) for run, rows in its)]


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


def measure(asked: Mapping[str, Sequence[str]], given: Namespace) -> Growth:
    """Make a ledger of each size, and ask it; Spark only about ledgers of up to `spark_up_to` events."""
    settings = Settings()
    sizes = [_size(given, events, asked) for events in given.sizes]
    return Growth(given.machine, given.groups, settings.partitions, settings.driver_memory, sizes)


def _size(given: Namespace, events: int, asked: Mapping[str, Sequence[str]]) -> Size:
    print(f"{events:,} events", flush=True)
    folder = given.folder / str(events)
    homes: dict[Engine, Settings] = {"duckdb": Settings(home=str(folder / "duckdb"))}
    home = homes["duckdb"]
    ledger = GrowingLedger(home, given.groups)
    ledger.grow(events)
    reached, second, appends = ledger.events, ledger.second, ledger.appends
    tables = {name: stored(home.warehouse.path / name) for name in TABLES}
    if events <= given.spark_up_to:
        homes["spark"] = structs.replace(home, home=str(folder / "spark"))
        shutil.copytree(home.home, homes["spark"].home)
    runs: dict[Engine, dict[str, Command]] = {engine: {} for engine in homes}
    for engine, its in homes.items():
        for name, arguments in asked.items():
            if name == "marts_again":
                ledger.grow(events + events // NEWS)
                for table_name in TABLES if its is not home else ():  # the copy gets the same new files
                    copied = its.warehouse.path / table_name
                    shutil.copytree(home.warehouse.path / table_name, copied, dirs_exist_ok=True)
            by_engine = () if name in _WITHOUT_ENGINE else ("--engine", engine)
            if by_engine or engine == "duckdb":
                runs[engine][name] = ask(its, f"{engine} {name}", (*arguments, *by_engine))
    shutil.rmtree(folder)
    return Size(reached, second, appends, tables, runs)


BENCH = Bench(
    "ledger_questions",
    "Questions to ledgers of up to 1,000,000 events, in both engines.",
    "45 minutes",
    partial(measure, _ASKED),
    options=(
        option("--sizes", type=numbers, default=(10_000, 100_000, 1_000_000), help="events, by comma"),
        option("--spark-up-to", type=int, default=1_000_000, help="most events that Spark is asked about"),
        option("--groups", type=whole, default=1_000, help="number of groups"),
    ),
    chapters=(Chapter("A whole ledger", section),),
    figures=Growth,
    file="ledger.json",
    run="The run of a whole ledger",
)
LONG_BENCH = Bench(
    "long_ledgers",
    "Memory and CPU of `check` and `replay` on up to 10,000,000 events.",
    "two hours",
    partial(measure, _ASKED_LONG),
    options=(
        option("--sizes", type=numbers, default=(1_000_000, 5_000_000, 10_000_000), help="events, by comma"),
        option("--spark-up-to", type=int, default=0, help="most events that Spark is asked about"),
        option("--groups", type=whole, default=1_000, help="number of groups"),
    ),
    chapters=(Chapter("Ledgers of millions of events", long_section),),
    figures=Growth,
    file="long.json",
)
