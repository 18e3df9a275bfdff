"""Questions about a moment on ledgers of 1, 7 and 30 days at 1,000 groups.

``python -m bench.aged_ledgers [--days 1,7,30]`` writes `aged.json` and `docs/performance.md`. It takes some minutes,
and needs Linux: memory is read from ``/proc``. The older files are hard links, and deleted at the end.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from deltalake import DeltaTable

from bench import aged_figures, long_ledgers, report
from bench.aged_figures import FLOOR, Age, Aged
from bench.long_figures import Command
from bench.machine import QUIET_LOAD, this_machine
from bench.results import write
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
_COPIED = (EVENTS, DECISIONS, ASSIGNMENTS, OFFSETS)
_FOLDER = Path(".wakeroll/bench-aged")


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.aged_ledgers", description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=_days, default=DAYS, help="ages, by comma, ascending, at least two (1,7,30)")
    parser.add_argument("--groups", type=int, default=long_ledgers.GROUPS, help="number of groups (%(default)s)")
    parser.add_argument("--events", type=int, default=EVENTS_AT_FIRST, help="of the copied files (%(default)s)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="emptied first, deleted at the end (%(default)s)")
    parser.add_argument("--json", type=Path, default=aged_figures.AGED, help="file of the figures (%(default)s)")
    given = parser.parse_args(arguments)
    machine = this_machine()
    if not machine.is_quiet:
        print(f"the load average is {machine.load:g}; from {QUIET_LOAD:g} on the figures do not count")
    shutil.rmtree(given.folder, ignore_errors=True)
    settings = Settings(home=str(given.folder.absolute()))
    ledger = long_ledgers.LongLedger(settings.warehouse.path, given.groups, settings.partitions)
    ledger.grow(given.events)
    copies = Copies(settings.warehouse.path, given.folder / "merged")
    ages = []
    for days in given.days:
        copies.reach(days)
        ages.append(_measure(settings, days))
    found = Aged(machine, given.groups, _records_behind(settings), ages)
    shutil.rmtree(given.folder)
    write(found, given.json)
    if given.json == aged_figures.AGED:
        report.make()
    return 0


class Copies:
    """Older and older copies of the rows of a warehouse, in hard links to one merged file per table."""

    def __init__(self, warehouse: Path, merged: Path) -> None:
        """Merge a copy of each table in the folder `merged`, as upkeep merges the files of past hours."""
        self._warehouse = warehouse
        self._merged = merged
        self._made = 0
        for table in _COPIED:
            shutil.copytree(warehouse / table.name, merged / table.name)
            DeltaTable(merged / table.name).optimize.compact()
        self._span_ms = max(last - first for first, last in map(self._bounds, _COPIED)) + 1_000

    def reach(self, days: int) -> None:
        """Add copies until the tables begin so many days before their end."""
        wanted = days * DAY_MS // self._span_ms
        for table in _COPIED:
            actions = [
                {"add": action}
                for number in range(self._made + 1, wanted)
                for action in self._actions(table, number)
            ]  # fmt: skip
            log = self._warehouse / table.name / "_delta_log"
            version = DeltaTable(self._warehouse / table.name).version() + 1
            lines = [{"commitInfo": {"timestamp": time.time_ns() // 1_000_000, "operation": "WRITE"}}, *actions]
            (log / f"{version:020}.json").write_bytes(b"\n".join(map(msgspec.json.encode, lines)))
            DeltaTable(self._warehouse / table.name).create_checkpoint()
        self._made = wanted - 1

    def _actions(self, table: Table, number: int) -> Iterator[dict[str, Any]]:
        """Link the merged files once more; yield their actions, with times that are older by `number` spans."""
        earlier_ms = number * self._span_ms + GAP_MS
        delta = DeltaTable(self._merged / table.name)
        for row in _rows(delta):
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
        rows = _rows(DeltaTable(self._merged / table.name))
        return min(row[f"min.{table.at}"] for row in rows), max(row[f"max.{table.at}"] for row in rows)


def _rows(delta: DeltaTable) -> list[dict[str, Any]]:
    actions: Any = delta.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in actions.schema.names}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _measure(settings: Settings, days: int) -> Age:
    sizes = [row["size_bytes"] for table in _COPIED for row in _rows(DeltaTable(settings.warehouse.path / table.name))]
    print(f"{days} days: {len(sizes):,} files", flush=True)
    runs: dict[str, list[Command]] = {name: [] for name in _ASKED}
    for _ in range(ROUNDS):
        for name, arguments in _ASKED.items():
            runs[name].append(long_ledgers.command(settings, name, arguments))
    commands = {name: sorted(its, key=lambda run: run.seconds)[ROUNDS // 2] for name, its in runs.items()}
    return Age(days, len(sizes), sum(sizes), commands)


def _records_behind(settings: Settings) -> int:
    """Return the number of records after the newest snapshots."""
    with duck_ledger(settings.warehouse, only=SNAPSHOTS) as ledger:
        [newest] = ledger.rows("select max(at_ms) as at_ms from snapshots")
        with ledger.within(newest.at_ms) as recent:
            [row] = recent.rows("select count(*) as records from events where at_ms > $at_ms", at_ms=newest.at_ms)
    return int(row.records)


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


def _days(text: str) -> Sequence[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
