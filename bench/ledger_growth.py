"""The growth of a ledger: rows, bytes and files per hour of 10, 1,000 and 10,000 groups, at rest and with traffic."""

import shutil
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession

from bench.deployment_events import MOST_MEMBERS, Life
from bench.frame import Bench, Chapter, numbers, option, whole
from bench.growing_ledger import RECORD_S, HeardRecords, append_states, stored
from bench.machine import Machine
from bench.text_tables import Columns, digits, table_of
from wakeroll.connection import Topics
from wakeroll_model.rows import RECORDED, SNAPSHOTS
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.snapshot_schedule import BYTES_PER_RECORD
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.spark.session import start_session
from wakeroll_pipeline.storage.parquet_files import STATES

GROUPS = (10, 1_000, 10_000)
GROUP_SECONDS = 1_800_000
"""Most seconds of the log, times the number of groups: larger deployments live shorter."""
WARMUP_S = 40
"""Until every client has joined, committed and sent a heartbeat."""
RECORDS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp_ms": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
    }
)
"""Columns of the records, as `record` reads them."""


class Grown(Struct, frozen=True):
    """What a table got in the measured time."""

    rows: int
    appended: int
    """Bytes of the files that `record` wrote."""
    files: int
    compacted: int
    """Bytes of the same rows after a compaction."""


class Case(Struct, frozen=True):
    """A deployment, and the rows of some time."""

    groups: int
    members: int
    is_at_rest: bool
    seconds: int
    """Of the log."""
    tables: dict[str, Grown]
    records: int
    """Records of the control topics."""
    snapshot: int
    """Bytes of one snapshot of all shards in its table."""
    snapshots_per_hour: float
    batch_ms: list[float]
    """Durations of the batches of `record`, one for each of its intervals."""

    @property
    def hours(self) -> float:
        """Of the log."""
        return self.seconds / 3_600

    def total(self, what: str) -> int:
        """Return a figure of all tables together."""
        return sum(getattr(grown, what) for grown in self.tables.values())


class LedgerGrowth(Struct, frozen=True):
    """What `ledger_growth` found."""

    machine: Machine
    interval_s: int
    """Of the batches of `record`."""
    cases: list[Case]


_COLUMNS: Columns[Case] = (
    ("groups (members)", lambda one: f"{one.groups:,} ({one.members:,}), {_load(one.is_at_rest)}"),
    ("seconds of the log", lambda one: f"{one.seconds:,}"),
    ("records per hour", lambda one: f"{one.records / one.hours:,.0f}"),
    ("rows of `events`", lambda one: f"{one.tables['events'].rows / one.hours:,.0f}"),
    ("of other tables", lambda one: f"{(one.total('rows') - one.tables['events'].rows) / one.hours:,.0f}"),
    ("MB per hour, appended", lambda one: digits(one.total("appended") / one.hours / 1e6)),
    ("compacted", lambda one: digits(one.total("compacted") / one.hours / 1e6)),
    ("GB per day", lambda one: digits(24 * one.total("compacted") / one.hours / 1e9)),
    ("snapshots, GB", lambda one: digits(24 * one.snapshot * one.snapshots_per_hour / 1e9)),
    ("files per hour", lambda one: f"{one.total('files') / one.hours:,.0f}"),
    ("batch of `record` ms", lambda one: digits(sorted(one.batch_ms)[len(one.batch_ms) // 2])),
)


def section(found: LedgerGrowth) -> str:
    """Return the chapter of these figures."""
    return f"""\
Groups of one to three members on the shards of one deployment, written by `record` every {found.interval_s} s, as
`run` does. At rest, there are ticks and heartbeats. With traffic, every member commits every 30 s if its queues have
grown, one group in ten waits for messages, and each second one client restarts, leaves or crashes, in the whole
deployment. The figures of an hour are those of some seconds of the log; the longer the log, the better its rows
compress. Upkeep compacts the appended files within minutes. A day is 24 hours of compacted rows. A snapshot contains
the state of all shards; it is taken every ten minutes, or after so many records that a reader has to apply. Retention
keeps the snapshots of one day, and a few of each earlier one.

{table_of(_COLUMNS, found.cases)}

Bytes per row after compaction, of the largest deployment with traffic: {_per_row(found.cases[-1])}.

Measured on {found.machine.measured} with {found.machine.sentence_with_load}
"""


def _per_row(case: Case) -> str:
    return ", ".join(
        f"`{name}` {digits(grown.compacted / grown.rows)}" for name, grown in case.tables.items() if grown.rows
    )


def _load(is_at_rest: bool) -> str:
    return "at rest" if is_at_rest else "with traffic"


def measure(given: Namespace) -> LedgerGrowth:
    """Measure a ledger for each number of groups, at rest and with traffic."""
    spark = start_session(Settings(home=str(given.folder / "spark")), "bench.ledger_growth")
    try:
        cases = [
            _case(
                spark,
                given.folder / f"{groups}-{at_rest}",
                groups,
                min(given.seconds, GROUP_SECONDS // groups),
                at_rest,
            )
            for groups in given.groups
            for at_rest in (True, False)
        ]
    finally:
        spark.stop()
        shutil.rmtree(given.folder, ignore_errors=True)
    return LedgerGrowth(given.machine, RECORD_S, cases)


def _case(spark: SparkSession, folder: Path, groups: int, seconds: int, is_at_rest: bool) -> Case:
    settings = Settings(home=str(folder))
    warehouse = settings.warehouse
    print(f"{groups:,} groups, {_load(is_at_rest)}", flush=True)
    heard = HeardRecords(settings.partitions)
    life = Life(groups, settings.partitions, heard.hear, is_at_rest=is_at_rest)
    _pass(life, WARMUP_S)
    heard.take()
    before, batches = heard.events, list[DataFrame]()
    for number in range(seconds // RECORD_S):
        _pass(life, RECORD_S)
        batches.append(_frame(spark, heard.take(), folder / f"batch-{number:03}.parquet"))
    records = heard.events - before
    ensure_tables(spark, warehouse)
    append_batch, batch_ms = record.writer(warehouse, Topics()), []
    for number, batch in enumerate(batches):
        began = time.monotonic()
        append_batch(batch, number)
        batch_ms.append(round((time.monotonic() - began) * 1_000, 1))
    paths = {table.name: path_of(warehouse, table).path for table in RECORDED}
    appended = {name: stored(path) for name, path in paths.items()}
    for table in RECORDED:
        while compact(path_of(warehouse, table), table):
            pass
    tables = {name: Grown(one.rows, one.size, one.files, stored(paths[name]).size) for name, one in appended.items()}
    append_states(ArrowSink(properties=STATES), life.topics, warehouse.path)
    snapshot = stored(path_of(warehouse, SNAPSHOTS).path).size
    shutil.rmtree(folder)
    # As `SnapshotSchedule` has it.
    state = sum(len(shard.body()) for topic in life.topics for shard in topic.shards)
    by_records = records * 3_600 / seconds / max(settings.snapshot_records, state // BYTES_PER_RECORD)
    snapshots = round(max(3_600_000 / settings.snapshot_interval_ms, by_records), 1)
    members = sum(number % MOST_MEMBERS + 1 for number in range(groups))
    return Case(groups, members, is_at_rest, seconds, tables, records, snapshot, snapshots, batch_ms)


def _pass(life: Life, seconds: int) -> None:
    for _ in range(seconds):
        life.pass_second()


def _frame(spark: SparkSession, records: Sequence[KafkaRecord], file: Path) -> DataFrame:
    """Write records to a file, and return them as Spark reads them from there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    values = zip(*records, strict=True)
    columns = [pa.array(column, field.type) for field, column in zip(RECORDS, values, strict=False)]
    pq.write_table(pa.table(columns, RECORDS), file)
    return spark.read.parquet(str(file))


BENCH = Bench(
    "ledger_growth",
    "Rows, bytes and files per hour of 10 to 10,000 groups.",
    "fifteen minutes",
    measure,
    options=(
        option("--groups", type=numbers, default=GROUPS, help="numbers, by comma"),
        option("--seconds", type=whole, default=1_800, help="of the log, at most"),
    ),
    chapters=(Chapter("The growth of a ledger", section),),
    figures=LedgerGrowth,
    file="growth.json",
)
