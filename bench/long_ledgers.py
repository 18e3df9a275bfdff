"""CPU and memory of `check` and `replay` on ledgers of 1 to 10 million events.

``python -m bench.long_ledgers [--sizes 1000000,2000000]`` writes `long.json` and `docs/performance.md`. It takes an
hour, and needs 5 GB of disk, which it frees, and Linux: memory is read from ``/proc``. Times are CPU times, so the
figures count on a machine with other work too.
"""

import argparse
import os
import resource
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable

from bench import long_figures, report
from bench.command_memory import run
from bench.control_topic import ControlTopic, snapshots_of
from bench.deployment_events import Life
from bench.long_figures import Command, Long, Size
from bench.machine import this_machine
from bench.population import START_MS
from bench.results import write
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import RECORDED, SNAPSHOTS, TABLES, SnapshotRow
from wakeroll_pipeline.jobs.snapshot_schedule import SnapshotSchedule
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.batches import Batch
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.parquet_files import STATES

GROUPS = 1_000
SIZES = (1_000_000, 2_000_000, 5_000_000, 10_000_000)
BATCH_S = 60
"""Log time of an append (s)."""
RECORD_S = Settings().record_interval_ms // 1_000
"""How often `record` asks whether snapshots are due (s)."""
_FOLDER = Path(".wakeroll/bench-long")
_PUBLISHED_LATER_MS = 300


def main(arguments: list[str] | None = None) -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.long_ledgers", description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=_sizes, default=SIZES, help="events, by comma, ascending")
    parser.add_argument("--groups", type=int, default=GROUPS, help="number of groups (%(default)s)")
    parser.add_argument("--folder", type=Path, default=_FOLDER, help="emptied first, deleted at the end (%(default)s)")
    parser.add_argument("--json", type=Path, default=long_figures.LONG, help="file of the figures (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the ledger")
    parser.add_argument("--no-questions", action="store_true", help="only write the ledger, and keep it")
    given = parser.parse_args(arguments)
    machine = this_machine()
    shutil.rmtree(given.folder, ignore_errors=True)
    settings = Settings(home=str(given.folder.absolute()))
    ledger = LongLedger(settings.warehouse.path, given.groups, settings.partitions)
    sizes = []
    for events in given.sizes:
        ledger.grow(events)
        print(f"{events:,} events, {ledger.second:,} s of the log", flush=True)
        if not given.no_questions:
            sizes.append(_measure(settings, ledger))
    if given.no_questions:
        return 0
    if not given.keep:
        shutil.rmtree(given.folder)
    write(Long(machine, given.groups, settings.partitions, sizes), given.json)
    if given.json == long_figures.LONG:
        report.make()
    return 0


class LongLedger:
    """A ledger that grows by the life of a deployment, written with its chain as `record` writes it, without Spark."""

    def __init__(self, warehouse: Path, groups: int, partitions: int) -> None:
        """Create the tables; `warehouse` must not exist."""
        for table in TABLES.values():
            DeltaTable.create(warehouse / table.name, schema=arrow_schema_of(table.row))
        self.events = 0
        self._warehouse = warehouse
        self._records: list[KafkaRecord] = []
        self._next_offsets = [0] * partitions
        self._batches = 0
        self._chains = Chains(warehouse)
        self._rows = ArrowSink(chains=self._chains)
        self._states = ArrowSink(properties=STATES, chains=self._chains)
        self._schedule = SnapshotSchedule(Settings(), START_MS)
        self._life = Life(groups, partitions, self._hear)

    @property
    def second(self) -> int:
        """Seconds that have passed, by the log."""
        return self._life.second

    @property
    def _now_ms(self) -> int:
        return START_MS + 1_000 * self._life.second

    def grow(self, events: int) -> None:
        """Let the deployment live until the ledger has so many events."""
        while self.events < events:
            self._life.pass_second()
            if self._life.second % BATCH_S == 0:
                self._append()
            if self._life.second % RECORD_S == 0 and self._schedule.is_due(self._now_ms, lambda: self.events):
                self._snapshot(self._life.topics)
        self._append()
        self._chains.gather(ArrowSink().append)

    def _hear(self, record: Record, decisions: Sequence[AnyDecision]) -> None:
        self.events += 1
        self._schedule.count(1)
        at_ms, partition = record.timestamp_ms, record.partition
        self._records.append(KafkaRecord(record.topic, partition, record.offset, at_ms, record.key, record.value))
        for decision in decisions:
            offset = self._next_offsets[partition]
            self._next_offsets[partition] += 1
            value = encode_decision(decision)
            published = KafkaRecord(Topics().decisions, partition, offset, at_ms + _PUBLISHED_LATER_MS, b"", value)
            self._records.append(published)

    def _append(self) -> None:
        records, self._records = sorted(self._records, key=lambda one: (one.topic, one.partition, one.offset)), []
        decisions = read_decisions(one for one in records if one.topic == Topics().decisions)
        rows = rows_of((one for one in records if one.topic != Topics().decisions), decisions)
        fresh = {table: its for table in RECORDED if (its := [one.row for one in rows[table.name]])}
        self._batches += 1
        batch = Batch(number=self._batches, tables=tuple(table.name for table in fresh))
        for table, its in fresh.items():
            self._rows.append(arrow_table(table.row, its), self._warehouse / table.name, batch.as_metadata())
        self._chains.gather(ArrowSink().append)

    def _snapshot(self, topics: Sequence[ControlTopic]) -> None:
        self._append()  # `record` stores the state behind the records that it has appended
        rows = snapshots_of(topics)
        self._schedule.begin(self._now_ms, self.events)
        self._states.append(arrow_table(SnapshotRow, rows), self._warehouse / SNAPSHOTS.name)
        self._schedule.end(self._now_ms, self._now_ms, sum(len(row.body) for row in rows))


def _measure(settings: Settings, ledger: LongLedger) -> Size:
    deltas = {name: DeltaTable(settings.warehouse.path / name) for name in TABLES}
    actions = {name: delta.get_add_actions(flatten=True) for name, delta in deltas.items()}
    return Size(
        events=ledger.events,
        rows=sum(sum(its.column("num_records").to_pylist()) for its in actions.values()),
        files=sum(its.num_rows for its in actions.values()),
        bytes=sum(sum(its.column("size_bytes").to_pylist()) for its in actions.values()),
        second=ledger.second,
        commands={name: command(settings, name, (*its, "--engine", "duckdb")) for name, its in _ASKED.items()},
    )


def command(settings: Settings, name: str, arguments: Sequence[str]) -> Command:
    """Run a command of wakeroll on a home, and return its figures."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", *arguments, "--home", settings.home]
    measured = run(argv, Path(settings.home) / f"{name}.log", dict(os.environ))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {name}: {cpu_s:.1f} s of CPU, {measured.seconds:.1f} s, {measured.together_mib:,.0f} MiB", flush=True)
    return Command(cpu_s=round(cpu_s, 1), seconds=measured.seconds, memory_mib=measured.together_mib)


_ASKED = {"check": ("check", "--no-docs"), "replay": ("replay",)}
"""Command -> its arguments."""


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
