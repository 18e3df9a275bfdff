"""CPU and memory of `check` and `replay` on ledgers of 1 to 10 million events.

It needs 5 GB of disk, which it frees. Times are CPU times, so the figures count on a machine with other work too.
"""

import shutil
from argparse import Namespace
from collections.abc import Iterator, Sequence

from msgspec import Struct

from bench.frame import Bench, Chapter, numbers, option, whole
from bench.growing_ledger import GrowingLedger, ask, stored
from bench.machine import Machine
from bench.process_usage import Command
from bench.text_tables import digits, table
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.settings import Settings

SIZES = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
BATCH_S = 60
"""Log time of an append (s)."""

COMMANDS = {"check": "`check`: every rule", "replay": "`replay`: all decisions, and all snapshots"}
"""Name of a command in the figures -> its row in the page, in the order of the page."""
_ASKED = {"check": ("check", "--no-docs"), "replay": ("replay",)}
"""Command -> its arguments."""


class Size(Struct, frozen=True):
    """A ledger of so many events, and the commands that read all of it."""

    events: int
    rows: int
    """Rows of all tables."""
    files: int
    """Files of all tables."""
    bytes: int
    """Bytes of these files."""
    second: int
    """Log time (s)."""
    commands: dict[str, Command]
    """Name, see `COMMANDS` -> its figures."""


class Long(Struct, frozen=True):
    """All of it."""

    machine: Machine
    groups: int
    partitions: int
    sizes: list[Size]


def section(found: Long) -> str:
    """Return the chapter of these figures."""
    sizes = found.sizes
    return f"""\
The deployment is that of the chapter before: {found.groups:,} groups on {2 * found.partitions} shards. One append has a
minute of its log, and the tables have their chains. `check` and `replay` read all rows, in DuckDB.

{table(["ledger", *(f"{size.events:,} events" for size in sizes)], _ledgers(sizes))}

CPU is that of all processes of a command, and of all cores. Memory is the highest resident memory of all processes
together.

{table(["command", *(f"{size.events:,} events" for size in sizes)], _commands(sizes))}

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
Other programs ran on both cores most of the time, so CPU times are given: they and memory depend little on the load.
A `replay` has a process per core; about 400 MiB of each are its own.
"""


def _ledgers(sizes: Sequence[Size]) -> Iterator[list[str]]:
    yield ["rows of all tables", *(f"{size.rows:,}" for size in sizes)]
    yield ["files", *(f"{size.files:,}" for size in sizes)]
    yield ["MB of files", *(digits(size.bytes / 1e6) for size in sizes)]
    yield ["seconds of the log", *(f"{size.second:,}" for size in sizes)]


def _commands(sizes: Sequence[Size]) -> Iterator[list[str]]:
    for name, text in COMMANDS.items():
        its = [(size, size.commands[name]) for size in sizes]
        yield [f"{text}: MiB", *(f"{command.memory_mib:,.0f}" for _, command in its)]
        yield ["its seconds of CPU", *(digits(command.cpu_s) for _, command in its)]
        yield ["its µs of CPU per row", *(digits(command.cpu_s * 1e6 / size.rows) for size, command in its)]


def measure(given: Namespace) -> Long:
    """Let a ledger grow, and ask it at each size."""
    settings = Settings(home=str(given.folder))
    ledger = GrowingLedger(settings, given.groups, append_s=BATCH_S)
    sizes = []
    for events in given.sizes:
        ledger.grow(events)
        print(f"{events:,} events, {ledger.second:,} s of the log", flush=True)
        sizes.append(_size(settings, ledger))
    shutil.rmtree(given.folder)
    return Long(given.machine, given.groups, settings.partitions, sizes)


def _size(settings: Settings, ledger: GrowingLedger) -> Size:
    tables = [stored(settings.warehouse.path / name) for name in TABLES]
    return Size(
        ledger.events,
        rows=sum(one.rows for one in tables),
        files=sum(one.files for one in tables),
        bytes=sum(one.size for one in tables),
        second=ledger.second,
        commands={name: ask(settings, name, (*its, "--engine", "duckdb")) for name, its in _ASKED.items()},
    )


BENCH = Bench(
    "long_ledgers",
    "Memory and CPU of `check` and `replay` on up to 10,000,000 events.",
    "an hour",
    measure,
    options=(
        option("--sizes", type=numbers, default=SIZES, help="events, by comma, ascending"),
        option("--groups", type=whole, default=1_000, help="number of groups"),
    ),
    chapters=(Chapter("Ledgers of millions of events", section),),
    figures=Long,
    file="long.json",
)
