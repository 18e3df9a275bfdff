"""Ledgers that grow by the life of a deployment, written with their chains as `record` writes them, without Spark."""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from deltalake import DeltaTable
from msgspec import Struct

from bench.deployment_events import Life
from bench.population import START_MS, ControlTopic
from bench.process_usage import Command, run
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import RECORDED, SNAPSHOTS, TABLES, SnapshotRow
from wakeroll_pipeline.jobs.snapshot_schedule import SnapshotSchedule
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.batches import Batch
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.stored_snapshots import snapshot_of
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.parquet_files import STATES

RECORD_S = Settings().record_interval_ms // 1_000
"""Interval of the batches of `record`, and of its question whether snapshots are due (s)."""
APPEND_S = 60
"""Log time of an append (s)."""
_PUBLISHED_LATER_MS = 300


class Stored(Struct, frozen=True, omit_defaults=True):
    """What a table holds, by its log."""

    rows: int
    size: int
    """Bytes of its files."""
    files: int = 0


class HeardRecords:
    """Records of Kafka, of the control topics and of the decisions, until they are taken."""

    def __init__(self, partitions: int, on_event: Callable[[], object] = lambda: None) -> None:
        """Start without records; each topic has so many partitions. `on_event` is called for each event."""
        self.events = 0
        """That were heard, also those that were taken."""
        self._records: list[KafkaRecord] = []
        self._next_offsets = [0] * partitions
        self._on_event = on_event

    def hear(self, record: Record, decisions: Sequence[AnyDecision]) -> None:
        """Take an event's record, and those of what was decided of it."""
        self.events += 1
        self._on_event()
        at_ms, partition = record.timestamp_ms, record.partition
        self._records.append(KafkaRecord(record.topic, partition, record.offset, at_ms, record.key, record.value))
        for decision in decisions:
            offset = self._next_offsets[partition]
            self._next_offsets[partition] += 1
            value = encode_decision(decision)
            published = KafkaRecord(Topics().decisions, partition, offset, at_ms + _PUBLISHED_LATER_MS, b"", value)
            self._records.append(published)

    def take(self) -> list[KafkaRecord]:
        """Return the records since the last call, in the order of their logs."""
        taken, self._records = self._records, []
        return sorted(taken, key=lambda one: (one.topic, one.partition, one.offset))


class GrowingLedger:
    """The tables of a deployment."""

    def __init__(self, settings: Settings, groups: int) -> None:
        """Create the tables of a deployment with so many groups."""
        self._warehouse = settings.warehouse.path
        for table in TABLES.values():
            if not (self._warehouse / table.name).exists():
                DeltaTable.create(self._warehouse / table.name, schema=arrow_schema_of(table.row))
        self.appends = 0
        """Of records, and of snapshots."""
        self._chains = Chains(self._warehouse)
        self._rows = ArrowSink(chains=self._chains)
        self._states = ArrowSink(properties=STATES, chains=self._chains)
        self._schedule = SnapshotSchedule(Settings(), START_MS)
        self._heard = HeardRecords(settings.partitions, lambda: self._schedule.count(1))
        self._life = Life(groups, settings.partitions, self._heard.hear)

    @property
    def events(self) -> int:
        """Number of events so far."""
        return self._heard.events

    @property
    def second(self) -> int:
        """Seconds that have passed, by the log."""
        return self._life.second

    def grow(self, events: int) -> None:
        """Let the deployment live until the ledger has so many events."""
        while self.events < events:
            self._life.pass_second()
            if self.second % APPEND_S == 0:
                self._append()
            if self.second % RECORD_S == 0 and self._schedule.is_due(self._now_ms, lambda: self.events):
                self._snapshot(self._life.topics)
        self._append()
        self._chains.gather(ArrowSink().append)

    @property
    def _now_ms(self) -> int:
        return START_MS + 1_000 * self.second

    def _append(self) -> None:
        records = self._heard.take()
        if not records:
            return
        decisions = read_decisions(one for one in records if one.topic == Topics().decisions)
        rows = rows_of((one for one in records if one.topic != Topics().decisions), decisions)
        fresh = {table: its for table in RECORDED if (its := [one.row for one in rows[table.name]])}
        self.appends += 1
        batch = Batch(number=self.appends, tables=tuple(table.name for table in fresh))
        for table, its in fresh.items():
            self._rows.append(arrow_table(table.row, its), self._warehouse / table.name, batch.as_metadata())
        self._chains.gather(ArrowSink().append)

    def _snapshot(self, topics: Sequence[ControlTopic]) -> None:
        self._append()  # `record` stores the state behind the records that it has appended
        self._schedule.begin(self._now_ms, self.events)
        rows = [snapshot_of(shard) for topic in topics for shard in topic.shards]
        self._states.append(arrow_table(SnapshotRow, rows), self._warehouse / SNAPSHOTS.name)
        self._schedule.end(self._now_ms, self._now_ms, sum(len(row.body) for row in rows))
        self.appends += 1


def stored(table: Path) -> Stored:
    """Return what a table holds."""
    files = DeltaTable(table).get_add_actions(flatten=True)
    rows, sizes = (files.column(name).to_pylist() for name in ("num_records", "size_bytes"))
    return Stored(sum(one or 0 for one in rows), sum(sizes), len(sizes))


def ask(settings: Settings, name: str, arguments: Sequence[str]) -> Command:
    """Run a command on a home as a user does; its output is in the home, in a file of its name."""
    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", *arguments]
    log = Path(settings.home) / f"{name.replace(' ', '-')}.log"
    found = run(argv, log, {**os.environ, **settings.environment()})
    print(f"  {name}: {found.cpu_s:.1f} s of CPU, {found.seconds:.1f} s, {found.memory_mib:,.0f} MiB", flush=True)
    return found
