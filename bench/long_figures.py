"""Figures of `check` and `replay` on ledgers of millions of events, and their chapter."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from bench.machine import Machine
from bench.text_tables import digits, table

LONG = Path(__file__).parent / "long.json"

COMMANDS = {"check": "`check`: every rule", "replay": "`replay`: all decisions, and all snapshots"}
"""Name of a command in the figures -> its row in the page, in the order of the page."""


class Command(Struct, frozen=True):
    """A command that has ended well."""

    cpu_s: float
    """CPU time of all its processes (s), the start included."""
    seconds: float
    """Time from its start to its end (s)."""
    memory_mib: float
    """Highest resident memory of all its processes together (MiB)."""


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


def section(found: Long | None) -> str:
    """Return the chapter of these figures."""
    if found is None:
        return "Not measured yet: `python -m bench.long_ledgers` takes an hour.\n"
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
