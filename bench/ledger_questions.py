"""The cost of queries to a whole ledger of 1,000 groups and 10,000 to 1,000,000 events, in DuckDB and in Spark.

``python -m bench.ledger_questions [--sizes 10000,30000]`` writes `ledger.json` and `docs/performance.md`.
It takes 40 minutes, most of them in Spark, and needs Linux: memory is read from ``/proc``.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from bench import ledger_figures, report
from bench.command_memory import Run, run
from bench.deployment_events import Life
from bench.ledger_figures import Floor, Growth, Size, Stored
from bench.machine import QUIET_LOAD, this_machine
from bench.reading import Read
from bench.recording import Batch, write_snapshots
from bench.results import write
from wakeroll_model.rows import SNAPSHOTS, TABLES
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.settings import Settings

GROUPS = 1_000
SIZES = (10_000, 100_000, 1_000_000)
APPENDS = 12
"""So that one of the largest ledger has as much as `record` takes at once while it catches up."""
NEWS = 100
"""One event in so many comes after the first `marts`, for the second one to find."""
_FOLDER = Path(".wakeroll/bench-ledger")
_NEWS = "news.parquet"


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger_questions", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="events, by comma (10000,100000,1000000)")
    parser.add_argument(
        "--spark-up-to", type=int, default=SIZES[-1], help="most events that Spark is asked about (%(default)s)"
    )
    parser.add_argument("--groups", type=int, default=GROUPS, help="that there are (%(default)s)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="emptied first (%(default)s)")
    parser.add_argument("--json", type=Path, default=ledger_figures.LEDGER, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    if not Path("/proc").is_dir():
        parser.error("this system has no /proc, from which memory is read; it must be Linux")
    write(measure(given.folder.absolute(), given.sizes, given.groups, given.spark_up_to), given.json)
    if given.json == ledger_figures.LEDGER:
        report.make()
    return 0


def measure(folder: Path, sizes: Sequence[int], groups: int, spark_up_to: int) -> Growth:
    """Make a ledger of each size, and ask it everything; Spark only about ledgers of up to so many events."""
    machine = this_machine()
    if not machine.is_quiet:
        print(f"the load average is {machine.load:g}; from {QUIET_LOAD:g} on the figures do not count")
    shutil.rmtree(folder, ignore_errors=True)
    settings = Settings()
    measured = [
        _measure(folder / str(events), events, groups, settings.partitions, with_spark=events <= spark_up_to)
        for events in sizes
    ]
    return Growth(machine, groups, settings.partitions, settings.driver_memory, measured)


def generate(folder: Path, events: int, groups: int, partitions: int) -> tuple[int, list[Path]]:
    """Let a deployment live, and write what its topics hold into files, for `bench.recording`.

    Args:
        folder: for the files.
        events: in the batches; a little more are in a file of their own, `_NEWS`.
        groups: that there are.
        partitions: of each control topic.

    Returns:
        The second that its life has come to, and the files but the last, in order.
    """
    batch = Batch(partitions)
    life = Life(groups, partitions, batch.hear)
    files: list[Path] = []
    snapshot_s = Settings().snapshot_interval_ms // 1_000
    for number in range(1, APPENDS + 1):
        while batch.events < events * number // APPENDS:
            life.pass_second()
            if life.second % snapshot_s == 0:
                files.append(folder / f"{SNAPSHOTS.name}-{life.second:06}.parquet")
                write_snapshots(life.topics, files[-1])
        if not batch.is_empty:  # a second of a small ledger may have several batches' events
            files.append(folder / f"batch-{number:03}.parquet")
            batch.write(files[-1])
    second, enough = life.second, batch.events + events // NEWS
    while batch.events < enough:
        life.pass_second()
    batch.write(folder / _NEWS)
    return second, files


def _measure(folder: Path, events: int, groups: int, partitions: int, *, with_spark: bool) -> Size:
    began = time.monotonic()
    logs = folder / "logs"
    logs.mkdir(parents=True)

    def measured(home: Path, name: str, *argv: str) -> Run:
        print(f"{events:,} events: {time.monotonic() - began:4.0f} s  {home.name} {name}", flush=True)
        env = {**os.environ, **Settings(home=str(home)).environment()}
        return run([sys.executable, "-m", *argv, "--home", str(home)], logs / f"{home.name}-{name}.log", env)

    second, files = generate(folder / "log", events, groups, partitions)
    homes: dict[Engine, Path] = {"duckdb": folder / "duckdb"}
    measured(homes["duckdb"], "record", "bench.recording", *map(str, files))
    if with_spark:
        homes["spark"] = folder / "spark"
        shutil.copytree(homes["duckdb"], homes["spark"])
    tables = {name: _stored(homes["duckdb"] / "warehouse" / name) for name in TABLES}
    reading = measured(homes["duckdb"], "floor", "bench.reading")
    read = msgspec.json.decode((logs / "duckdb-floor.log").read_bytes().splitlines()[-1], type=Read)
    floor = Floor(round(reading.seconds - read.seconds, 2), read.seconds, read.event_bytes, reading)
    runs: dict[Engine, dict[str, Run]] = {engine: {} for engine in homes}
    for engine, home in homes.items():
        for name, arguments in _ASKED.items():
            if name == "marts_again":
                measured(home, "record_news", "bench.recording", str(folder / "log" / _NEWS))
            by_engine = () if name in _WITHOUT_ENGINE else ("--engine", engine)
            if by_engine or engine == "duckdb":
                runs[engine][name] = measured(home, name, "wakeroll_pipeline.cli", *arguments, *by_engine)
    return Size(events, events // NEWS, second, len(files), tables, floor, runs)


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
"""Command, see `ledger_figures.COMMANDS` -> its arguments; in the order in which they run."""


_WITHOUT_ENGINE = ("groups", "describe", "explain")
"""Commands that read a part of the tables: the newest snapshots and the records since, or the files of some hours."""


def _stored(table: Path) -> Stored:
    files = [file for file in table.rglob("*.parquet") if "_delta_log" not in file.parts]
    return Stored(sum(pq.read_metadata(file).num_rows for file in files), sum(file.stat().st_size for file in files))


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
