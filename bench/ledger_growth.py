"""The growth of a ledger: rows, bytes and files per hour of 10, 1,000 and 10,000 groups, at rest and with traffic.

``python -m bench.ledger_growth`` writes `growth.json` and `docs/performance.md`.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from bench import growth_figures, report
from bench.deployment_events import MOST_MEMBERS, Life
from bench.growth_figures import Case, Grown, LedgerGrowth
from bench.machine import QUIET_LOAD, this_machine
from bench.recording import Batch, append_snapshots, write_snapshots
from bench.results import write
from wakeroll.connection import Topics
from wakeroll_model.rows import RECORDED, SNAPSHOTS
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.snapshot_schedule import BYTES_PER_RECORD
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.tables import ensure_tables, path_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.session import start_session
from wakeroll_pipeline.storage.place import Place

GROUPS = (10, 1_000, 10_000)
SECONDS = 1_800
GROUP_SECONDS = 1_800_000
"""Most seconds of the log, times the number of groups: larger deployments live shorter."""
WARMUP_S = 40
"""Until every client has joined, committed and sent a heartbeat."""
_FOLDER = Path(".wakeroll/bench-growth")


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.ledger_growth", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=_numbers, default=GROUPS, help="by comma (10,1000,10000)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of the log, at most (%(default)s)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="emptied first (%(default)s)")
    parser.add_argument("--json", type=Path, default=growth_figures.GROWTH, help="where the figures go (%(default)s)")
    given = parser.parse_args(arguments)
    write(measure(given.folder.absolute(), given.groups, given.seconds), given.json)
    if given.json == growth_figures.GROWTH:
        report.make()
    return 0


def measure(folder: Path, groups: Sequence[int], seconds: int) -> LedgerGrowth:
    """Measure a ledger for each number of groups, at rest and with traffic."""
    machine = this_machine()
    if not machine.is_quiet:
        print(f"the load average is {machine.load:g}; from {QUIET_LOAD:g} on the durations do not count")
    shutil.rmtree(folder, ignore_errors=True)
    settings = Settings(home=str(folder / "spark"))
    spark = start_session(settings, "bench.ledger_growth")
    try:
        cases = [
            _case(
                spark,
                folder / f"{number}-{is_at_rest}",
                number,
                min(seconds, GROUP_SECONDS // number),
                is_at_rest=is_at_rest,
            )
            for number in groups
            for is_at_rest in (True, False)
        ]
    finally:
        spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
    interval_s = settings.record_interval_ms // 1_000
    return LedgerGrowth(machine, interval_s, cases)


def _case(spark: SparkSession, folder: Path, groups: int, seconds: int, *, is_at_rest: bool) -> Case:
    settings = Settings(home=str(folder))
    print(f"{groups:,} groups, {'at rest' if is_at_rest else 'with traffic'}", flush=True)
    files, records, life = _generate(folder / "log", settings, groups, seconds, is_at_rest=is_at_rest)
    ensure_tables(spark, settings.warehouse)
    append_batch = record.writer(settings.warehouse, Topics())
    batch_ms = []
    for number, file in enumerate(files):
        rows = spark.read.parquet(str(file))
        began = time.monotonic()
        append_batch(rows, number)
        batch_ms.append(round((time.monotonic() - began) * 1_000, 1))
    appended = {table.name: _stored(path_of(settings.warehouse, table)) for table in RECORDED}
    for table in RECORDED:
        while compact(path_of(settings.warehouse, table), table):
            pass
    tables = {
        table.name: Grown(rows, size, number, _stored(path_of(settings.warehouse, table))[1])
        for table in RECORDED
        for rows, size, number in [appended[table.name]]
    }
    write_snapshots(life.topics, folder / "snapshots.parquet")
    append_snapshots(spark, settings, folder / "snapshots.parquet")
    snapshot = _stored(path_of(settings.warehouse, SNAPSHOTS))[1]
    members = sum(number % MOST_MEMBERS + 1 for number in range(groups))
    shutil.rmtree(folder)
    # As `SnapshotSchedule` has it.
    state = sum(len(shard.body()) for topic in life.topics for shard in topic.shards)
    by_records = records * 3_600 / seconds / max(settings.snapshot_records, state // BYTES_PER_RECORD)
    snapshots = round(max(3_600_000 / settings.snapshot_interval_ms, by_records), 1)
    return Case(groups, members, is_at_rest, seconds, tables, records, snapshot, snapshots, batch_ms)


def _generate(
    folder: Path, settings: Settings, groups: int, seconds: int, *, is_at_rest: bool
) -> tuple[list[Path], int, Life]:
    """Write the records of each interval of `record` to a file, without those of the first seconds; count them."""
    batch = Batch(settings.partitions)
    life = Life(groups, settings.partitions, batch.hear, is_at_rest=is_at_rest)
    for _ in range(WARMUP_S):
        life.pass_second()
    batch.forget()
    before = batch.events
    files = []
    interval_s = settings.record_interval_ms // 1_000
    for number in range(seconds // interval_s):
        for _ in range(interval_s):
            life.pass_second()
        files.append(folder / f"batch-{number:03}.parquet")
        batch.write(files[-1])
    return files, batch.events - before, life


def _stored(path: Place) -> tuple[int, int, int]:
    """Return the rows, the bytes and the files of a table."""
    actions = open_delta(path).get_add_actions(flatten=True)
    sizes, rows = (actions[name].to_pylist() for name in ("size_bytes", "num_records"))
    return sum(number or 0 for number in rows), sum(sizes), len(sizes)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
