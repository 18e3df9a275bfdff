"""The ledger of a watch, without Spark: events about Kafka's groups, the decisions that follow, and snapshots."""

import gc
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from msgspec import Struct

from wakeroll.connection import Topics
from wakeroll_model.coordinator_log.kafka_events import (
    KafkaEvent,
    LogEvent,
    Progress,
    encode_event,
    read_log_event,
)
from wakeroll_model.decision_order import without_era
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.partitioner import partition_of
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import DECISIONS, RECORDED, SNAPSHOTS, SnapshotRow, Table
from wakeroll_model.shard import Shard
from wakeroll_pipeline.kafka_watch.commit_sampling import Mark
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.batches import Batch, newest_number
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.maintenance import Upkeep
from wakeroll_pipeline.ledger.stored_snapshots import snapshot_of
from wakeroll_pipeline.ledger.table_creation import create_tables
from wakeroll_pipeline.live.ledger_reader import archived_shards
from wakeroll_pipeline.operators.ledger_rows import (
    NOWHERE,
    KafkaRecord,
    PlacedRow,
    Positions,
    newest_of,
    read_decisions,
    rows_of,
)
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.parquet_files import STATES
from wakeroll_pipeline.storage.place import Folder
from wakeroll_pipeline.storage.small_files import StorageFailed

log = logging.getLogger(__name__)

SNAPSHOT_S = 600.0
"""Time between two snapshots of a shard that has new events (s)."""
SNAPSHOT_RECORDS = 50_000
"""Events of a shard after which a snapshot is taken earlier."""


class Told(Struct, frozen=True):
    """An event and its time."""

    at_ms: int
    """Time of the record in Kafka (epoch ms)."""
    event: LogEvent


class WatchedLedger:
    """The tables and the shards of a watch. One process at a time has them open. For one thread."""

    def __init__(self, settings: Settings) -> None:
        """Create missing tables, and continue with the shards as of their last events.

        If an earlier process ended between the appends to two tables, the missing decisions are derived again.

        Args:
            settings: name the folder of the tables, the topics, the number of shards, and how long rows are kept.

        Raises:
            UnreadableTable: a table cannot be read.
        """
        warehouse = settings.warehouse
        self._warehouse, self._topics, self._partitions = warehouse, Topics(settings.prefix), settings.partitions
        create_tables(warehouse, settings.keep_versions_ms)
        self._chains = Chains(warehouse)
        versions = self._chains.begin()
        self._newest: dict[str, Positions] = {
            table.name: newest_of(table, self._chains.highest(table)) for table in RECORDED
        }
        self._numbers = count(1 + newest_number(warehouse, {table.name: versions[table.name] for table in RECORDED}))
        self._sink = ArrowSink(chains=self._chains)
        self._states = ArrowSink(properties=STATES, chains=self._chains)
        append = partial(_append, self._sink)
        self._upkeep = Upkeep(
            settings,
            rewriting=lambda table, ends: self._chains.rewriting(table, ends, "older than the retention", append),
            finish=lambda table: self._chains.finish(table, append),
        )
        self._shards: dict[int, Shard] = {}
        self._unsaved: dict[int, int] = {}
        """Partition -> events since the last snapshot."""
        self._snapshot_s = time.monotonic()
        self.marks: dict[int, Mark] = {}
        """Partition of `__consumer_offsets` -> progress of recording it."""
        self._restore()

    @property
    def is_new(self) -> bool:
        """Whether nothing is recorded yet."""
        return not self.marks and all(shard.offset < 0 for shard in self._shards.values())

    @property
    def shards(self) -> Mapping[int, Shard]:
        """Partition -> its shard."""
        return self._shards

    def home(self, group_id: str) -> Shard:
        """Return the shard of a group."""
        return self._shards[partition_of(group_id.encode(), self._partitions)]

    def append(self, told: Iterable[Told]) -> int:
        """Apply events in order, and append them and the decisions; return the number of decisions.

        If it raises, the shards are ahead of the tables: then only `close` may be called, and a new ledger must be
        opened.

        Args:
            told: the events; an event that is about no group is applied to every shard.

        Raises:
            StorageFailed: a table cannot be written.
        """
        with _without_collection():
            count = self._append(told)
        self._take_snapshots_if_due()
        if self._chains.is_due:
            self._chains.gather(partial(_append, self._sink))
        self._upkeep.step()
        return count

    def _append(self, told: Iterable[Told]) -> int:
        events: list[KafkaRecord] = []
        decisions: list[KafkaRecord] = []
        for one in told:
            event = one.event
            key = event.group_id.encode() if isinstance(event, KafkaEvent) else None
            value = encode_event(event)
            homes = [partition_of(key, self._partitions)] if key is not None else [*self._shards]
            if isinstance(event, Progress):
                homes = [0]
            for partition in homes:
                shard = self._shards[partition]
                record = Record(self._topics.kafka, partition, shard.offset + 1, one.at_ms, key, value)
                decided = shard.apply(record)
                events.append(KafkaRecord(record.topic, partition, record.offset, one.at_ms, key, value))
                decisions += self._published(partition, one.at_ms, decided)
                self._unsaved[partition] = self._unsaved.get(partition, 0) + 1
        try:
            self._write(events, decisions)
        except BaseException:
            self._unsaved.clear()  # a snapshot would hide from a restart what the tables lack
            raise
        return len(decisions)

    def close(self) -> None:
        """Take the last snapshots, unless an append has failed, and append the last lines of the chains.

        Raises:
            StorageFailed: a table cannot be written.
        """
        self._take_snapshots()
        self._chains.gather(partial(_append, self._sink))

    def _restore(self) -> None:
        decisions: list[KafkaRecord] = []
        made = self._newest[DECISIONS.name]
        with duck_ledger(self._warehouse, only=SNAPSHOTS) as opened, opened.within() as ledger:
            for follower, records in archived_shards(ledger, self._topics, self._partitions):
                if follower.place[0] != self._topics.kafka:
                    continue
                partition = follower.place[1]
                self._shards[partition] = follower.shard
                for record in records:
                    decided = follower.shard.apply(record)
                    decisions += self._published(partition, record.timestamp_ms, decided)
                    follower.encode_if_due(time.monotonic())
            query = (
                "select value from events where type = 'progress' and partition = 0 order by \"offset\" desc limit 1"
            )
            for (value,) in ledger.stream(query):
                progress = read_log_event(bytes(value))
                assert isinstance(progress, Progress), "its type says so"
                self.marks = {
                    int(number): Mark(offset, progress.read_offsets.get(number, offset))
                    for number, offset in progress.next_offsets.items()
                }
        for partition in range(self._partitions):
            if partition not in self._shards:
                self._shards[partition] = Shard(self._topics.kafka, partition, self._partitions)
        self._shards = dict(sorted(self._shards.items()))
        missing = [
            one
            for one in read_decisions(decisions)
            if one.position > made.get((one.stream[0], without_era(one.row.shard)), NOWHERE)
        ]
        if missing:
            log.info("%d decisions are made again: the process before ended between two tables", len(missing))
        self._write([], decisions)

    def _published(self, partition: int, at_ms: int, decisions: Iterable[AnyDecision]) -> list[KafkaRecord]:
        """Return decisions with the times at which Kafka recorded their causes as times of publication."""
        return [
            KafkaRecord(self._topics.decisions, partition, 0, at_ms, None, encode_decision(one)) for one in decisions
        ]

    def _write(self, events: list[KafkaRecord], decisions: list[KafkaRecord]) -> None:
        """Append the rows that the tables do not have yet; first the events, which prove the decisions."""
        rows = rows_of(events, read_decisions(decisions))
        fresh: dict[Table, list[PlacedRow]] = {}
        for table in RECORDED:
            seen = self._newest[table.name]
            its = [one for one in rows[table.name] if one.position > seen.get(one.stream, NOWHERE)]
            if its:
                fresh[table] = its
        if not fresh:
            return
        batch = Batch(number=next(self._numbers), tables=tuple(table.name for table in fresh))
        for table, its in fresh.items():
            seen = self._newest[table.name]
            found = arrow_table(table.row, [one.row for one in its])
            _append(self._sink, found, self._warehouse / table.name, batch.as_metadata())
            for one in its:
                seen[one.stream] = max(one.position, seen.get(one.stream, NOWHERE))

    def _take_snapshots_if_due(self) -> None:
        is_late = time.monotonic() - self._snapshot_s >= SNAPSHOT_S
        if is_late or max(self._unsaved.values(), default=0) >= SNAPSHOT_RECORDS:
            self._take_snapshots()

    def _take_snapshots(self) -> None:
        self._snapshot_s = time.monotonic()
        rows = [snapshot_of(shard) for partition, shard in self._shards.items() if self._unsaved.pop(partition, 0)]
        if rows:
            _append(self._states, arrow_table(SnapshotRow, rows), self._warehouse / SNAPSHOTS.name)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Switch garbage collection off for a block that makes very many objects: it would take 40 % of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _append(sink: ArrowSink, rows: pa.Table, table: Folder, metadata: Mapping[str, str] | None = None) -> None:
    """Append rows to a table.

    Raises:
        StorageFailed: it cannot be written, for example because the disk is full.
    """
    try:
        sink.append(rows, table, metadata)
    except (DeltaError, OSError) as error:
        raise StorageFailed(f"cannot write to {table}: {in_one_line(error)}") from error
