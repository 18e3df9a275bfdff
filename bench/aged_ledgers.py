"""Questions about a moment on ledgers of 1, 7 and 30 days at 1,000 groups.

The older files are hard links, and deleted at the end.
"""

import shutil
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable
from msgspec import Struct

from bench.frame import Bench, Chapter, numbers, option, whole
from bench.growing_ledger import GrowingLedger, ask, files_of, stored
from bench.long_ledgers import BATCH_S
from bench.machine import Machine
from bench.process_usage import Command
from bench.text_tables import digits, table
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, Table
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.settings import Settings

EVENTS_AT_FIRST = 600_000
"""Events of the files that are copied: 45 minutes, with 54,000 records behind the newest snapshots."""
DAYS = (1, 7, 30)
ROUNDS = 3
"""Runs of each command on each ledger; the median counts."""
DAY_MS = 86_400_000
GAP_MS = 2 * 3_600_000
"""Log time between the newest rows and their copies (ms), which have the same offsets: no question may read both as one
log, so the newest snapshots must be within it."""
FLOOR = "groups --help"
"""Command whose time is that of a start."""
YEAR_DAYS = 365
_COPIED = (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS)
_ASKED = {
    FLOOR: tuple(FLOOR.split()),
    "groups": ("groups", "--json"),
    "describe": ("describe", "group-0004", "--json"),
    "lag": ("lag", "--json"),
    "lag GROUP": ("lag", "group-0004", "--json"),
    "state": ("state", "--json"),
    "explain": ("explain", "--group", "group-0004", "--queue", "orders-04-0"),
    "watch --once": ("watch", "--once", "--json"),
}
"""Command -> its arguments."""


class Age(Struct, frozen=True):
    """A ledger of some age, and what it was asked."""

    days: int
    files: int
    """Files of all tables."""
    bytes: int
    """Bytes of these files."""
    commands: dict[str, Command]
    """Command -> its figures."""


class Aged(Struct, frozen=True):
    """All of it."""

    machine: Machine
    groups: int
    records: int
    """Records behind the snapshots."""
    ages: list[Age]
    """The youngest first; at least two."""


def section(found: Aged) -> str:
    """Return the chapter of these figures."""
    ages = found.ages
    days = [f"{age.days} days" for age in ages]
    return f"""\
{found.groups:,} groups, and {found.records:,} records behind the newest snapshots. The older files are hard links to
those of the first hour, with older times in the Delta log. Each command is a process of its own; times include its
start, and are medians. In brackets are the multiple of the time of `{FLOOR}`, which only starts, and the peak memory.
The last column continues the growth between the first and the last age.

{table(["ledger", *days], _ledgers(ages))}

{table([f"seconds (x `{FLOOR}`, MiB)", *days, f"{YEAR_DAYS} days, by growth"], _commands(ages))}

Measured on {found.machine.measured} with {found.machine.sentence}.
"""


def _ledgers(ages: Sequence[Age]) -> Iterator[list[str]]:
    yield ["files", *(f"{age.files:,}" for age in ages)]
    yield ["GB of files", *(digits(age.bytes / 1e9) for age in ages)]


def _commands(ages: Sequence[Age]) -> Iterator[list[str]]:
    first, last = ages[0], ages[-1]
    for name, begin in first.commands.items():
        grown = (last.commands[name].seconds - begin.seconds) / (last.days - first.days)
        in_a_year = last.commands[name].seconds + max(grown, 0) * (YEAR_DAYS - last.days)
        its = [age.commands[name] for age in ages]
        floors = [age.commands[FLOOR].seconds for age in ages]
        yield [
            f"`{name}`",
            *(
                f"{digits(one.seconds)} ({one.seconds / floor:.1f}, {one.memory_mib:,.0f})"
                for one, floor in zip(its, floors, strict=True)
            ),
            digits(in_a_year),
        ]


def measure(given: Namespace) -> Aged:
    """Make a ledger older and older, and ask it at each age."""
    settings = Settings(home=str(given.folder))
    GrowingLedger(settings, given.groups, append_s=BATCH_S).grow(given.events)
    copies = Copies(settings.warehouse.path, given.folder / "merged")
    ages = []
    for days in given.days:
        copies.reach(days)
        ages.append(_age(settings, days))
    found = Aged(given.machine, given.groups, _records_behind(settings), ages)
    shutil.rmtree(given.folder)
    return found


def _age(settings: Settings, days: int) -> Age:
    tables = [stored(settings.warehouse.path / table.name) for table in _COPIED]
    files = sum(one.files for one in tables)
    print(f"{days} days: {files:,} files", flush=True)
    runs: dict[str, list[Command]] = {name: [] for name in _ASKED}
    for _ in range(ROUNDS):
        for name, arguments in _ASKED.items():
            runs[name].append(ask(settings, name, arguments))
    commands = {name: sorted(its, key=lambda run: run.seconds)[ROUNDS // 2] for name, its in runs.items()}
    return Age(days, files, sum(one.size for one in tables), commands)


class Copies:
    """Older and older copies of the rows of a warehouse, in hard links to one merged file per table."""

    def __init__(self, warehouse: Path, merged: Path) -> None:
        """Merge a copy of each table in the folder `merged`, as upkeep merges the files of past hours."""
        self._warehouse = warehouse
        self._merged = merged
        self._made = 0
        for copied in _COPIED:
            shutil.copytree(warehouse / copied.name, merged / copied.name)
            DeltaTable(merged / copied.name).optimize.compact()
        self._span_ms = max(last - first for first, last in map(self._bounds, _COPIED)) + 1_000

    def reach(self, days: int) -> None:
        """Add copies until the tables begin so many days before their end."""
        wanted = days * DAY_MS // self._span_ms
        for copied in _COPIED:
            actions = [
                {"add": action}
                for number in range(self._made + 1, wanted)
                for action in self._actions(copied, number)
            ]  # fmt: skip
            log = self._warehouse / copied.name / "_delta_log"
            version = DeltaTable(self._warehouse / copied.name).version() + 1
            lines = [{"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE"}}, *actions]
            (log / f"{version:020}.json").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
            DeltaTable(self._warehouse / copied.name).create_checkpoint()
        self._made = wanted - 1

    def _actions(self, table: Table, number: int) -> Iterator[dict[str, Any]]:
        """Link the merged files once more; yield their actions, with times that are older by `number` spans."""
        earlier_ms = number * self._span_ms + GAP_MS
        delta = DeltaTable(self._merged / table.name)
        for row in files_of(delta):
            name = f"copy-{number:05}-{row['path']}"
            (self._warehouse / table.name / name).hardlink_to(self._merged / table.name / row["path"])
            bounds = {edge: row[f"{edge}.{table.at}"] - earlier_ms for edge in ("min", "max")}
            stats = {
                "numRecords": row["num_records"],
                "minValues": {table.at: bounds["min"]},
                "maxValues": {table.at: bounds["max"]},
                "nullCount": {table.at: 0},
            }
            yield {
                "path": name,
                "partitionValues": {},
                "size": row["size_bytes"],
                "modificationTime": row["modification_time"] - earlier_ms,
                "dataChange": True,
                "stats": msgspec.json.encode(stats).decode(),
            }

    def _bounds(self, table: Table) -> tuple[int, int]:
        rows = files_of(DeltaTable(self._merged / table.name))
        return min(row[f"min.{table.at}"] for row in rows), max(row[f"max.{table.at}"] for row in rows)


def _records_behind(settings: Settings) -> int:
    """Return the number of records after the newest snapshots."""
    with duck_ledger(settings.warehouse, only=SNAPSHOTS) as ledger:
        [newest] = ledger.rows("select max(at_ms) as at_ms from snapshots")
        with ledger.within(newest.at_ms) as recent:
            [row] = recent.rows("select count(*) as records from events where at_ms > $at_ms", at_ms=newest.at_ms)
    return int(row.records)


BENCH = Bench(
    "aged_ledgers",
    "Questions about a moment on ledgers of 1, 7 and 30 days.",
    "some minutes",
    measure,
    options=(
        option("--days", type=numbers, default=DAYS, help="ages, by comma, ascending, at least two"),
        option("--groups", type=whole, default=1_000, help="number of groups"),
        option("--events", type=whole, default=EVENTS_AT_FIRST, help="of the copied files"),
    ),
    chapters=(Chapter("Questions on a ledger of 30 days", section),),
    figures=Aged,
    file="aged.json",
    run="The run of ledgers of some age",
)
