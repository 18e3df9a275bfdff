"""The `record` query: it writes events and decisions to Delta, each row exactly once."""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import count

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.connection import Topics
from wakeroll.headers import WRITER_HEADER
from wakeroll_model.rows import DECISIONS, EVENTS, RECORDED, Table
from wakeroll_pipeline.jobs.divergences import Divergences
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.batches import Batch, newest_number
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.maintenance import Report, Upkeep
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.operators.ledger_rows import (
    NOWHERE,
    KafkaRecord,
    PlacedRow,
    Positions,
    ReadDecision,
    newest_of,
    read_decisions,
    rows_of,
)
from wakeroll_pipeline.recovery.log_gaps import resume_recording
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sources.kafka_source import records
from wakeroll_pipeline.storage.place import Folder

NAME = RECORD

log = logging.getLogger("wakeroll.run")


def start(
    spark: SparkSession,
    settings: Settings,
    report: Report | None = None,
    turn: WriteTurn | None = None,
    diverged: Callable[[int], None] | None = None,
    recorded: Callable[[int], None] | None = None,
    chains: Chains | None = None,
) -> StreamingQuery:
    """Start the recording query: control topics and decisions → Delta.

    Records that Kafka deleted before they were read are reported in the log.

    Args:
        spark: a session.
        settings: settings of the deployment.
        report: receives each step of upkeep.
        turn: the turn of this process to write the tables, which exist; None: a lock excludes all other processes.
        diverged: receives the number of decisions since the start that differ from those of another coordinator.
        recorded: receives the number of records of the control topics that were written, after each append.
        chains: the hash chains of the tables, if other code of this process appends to them too.

    Raises:
        InvalidUsage: a table conflicts with its declaration, and no migration solves it.
        NotReachable: no broker answered.
        Fenced: another process has taken the turn without a lock.
    """
    connection = settings.connection
    if turn is None:
        ensure_tables(spark, settings.warehouse, settings.keep_versions_ms)
        turn = WriteTurn(settings)
    turn.forget_earlier()
    topics = (*connection.topics.control, connection.topics.decisions)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
    begin = resume_recording(settings, turn.checkpoint, turn.before)
    archived = records(spark, connection, topics, settings.max_offsets_per_batch, begin, more=["headers"])
    # A task that reads several Kafka partitions costs less than a task for each of them. The executors of a cluster may
    # not be there yet, so their cores do not count.
    tasks = max(spark.sparkContext.defaultParallelism, settings.state_partitions)
    chains = Chains(settings.warehouse) if chains is None else chains
    write = writer(settings.warehouse, connection.topics, turn.number, diverged, recorded, chains)
    append = ArrowSink(turn.number).append
    upkeep = Upkeep(
        settings,
        report,
        lambda table, ends: chains.rewriting(table, ends, "older than the retention", append),
        lambda table: chains.finish(table, append),
    )

    def write_and_look_after(batch: DataFrame, _batch_id: int) -> None:
        turn.confirm()
        write(batch.toArrow())
        turn.confirm()  # if another process has the turn by now, it reads the batch itself
        upkeep.step()

    return (
        _with_writer(archived)
        .coalesce(tasks)
        .writeStream.foreachBatch(write_and_look_after)
        .option("checkpointLocation", settings.checkpoint(turn.checkpoint).for_spark())
        .queryName(NAME)
        .trigger(processingTime=f"{settings.record_interval_ms} milliseconds")
        .start()
    )


def writer(
    warehouse: Folder,
    topics: Topics,
    number: int | None = None,
    diverged: Callable[[int], None] | None = None,
    recorded: Callable[[int], None] | None = None,
    chains: Chains | None = None,
) -> Callable[[pa.Table], None]:
    """Return the function that writes a batch: it derives rows from records and appends them.

    The columns of a batch are the fields of `KafkaRecord`, in this order; `writer` may be missing.

    Each row is written once: rows that are not above the table's highest position of their stream are dropped. Such
    rows come from a repeated batch, from a decision that Kafka has twice, or after the loss of a checkpoint from all
    records. Decisions of an older era than the shard's current one are dropped too: another coordinator made them. Each
    table has its own positions, so all tables stay correct after a crash between two commits.

    `number` is the number of the turn of this process. The turn has excluded all earlier processes already, so the
    positions that are read here include their rows. None: the tables have no fences.
    """
    chains = Chains(warehouse) if chains is None else chains
    versions = chains.begin()
    newest = {table.name: newest_of(table, chains.highest(table)) for table in RECORDED}
    sink = ArrowSink(number, chains=chains)
    stale: set[str] = set()
    divergences = Divergences(warehouse, sink, chains)
    numbers = count(1 + newest_number(warehouse, {table.name: versions[table.name] for table in RECORDED}))

    def new_among(table: Table, rows: Iterable[PlacedRow]) -> list[PlacedRow]:
        seen = newest[table.name]
        return [one for one in rows if one.position > seen.get(one.stream, NOWHERE)]

    def append(table: Table, fresh: list[PlacedRow], its_batch: Batch) -> None:
        seen = newest[table.name]
        rows = arrow_table(table.row, [one.row for one in fresh])
        sink.append(rows, path_of(warehouse, table), its_batch.as_metadata())
        for one in fresh:
            seen[one.stream] = max(one.position, seen.get(one.stream, NOWHERE))
        if table is EVENTS and recorded is not None:
            recorded(len(fresh))

    def write(batch: pa.Table) -> None:
        for some in _records_of(batch):
            decisions = read_decisions(one for one in some if one.topic == topics.decisions)
            _warn_of_stale(decisions, newest[DECISIONS.name], stale)
            rows = rows_of((one for one in some if one.topic in topics.control), decisions)
            fresh = {table: its for table in RECORDED if (its := new_among(table, rows[table.name]))}
            its_batch = Batch(number=next(numbers), tables=tuple(table.name for table in fresh))
            for table, its in fresh.items():
                append(table, its, its_batch)
            divergences.look_at(decisions)
        if chains.is_due:
            chains.gather(sink.append)
        if diverged is not None:
            diverged(divergences.count)

    return write


MOST_AT_ONCE = 20_000
"""Maximum number of records that are Python objects at the same time; a larger batch is appended in several commits.

Each commit is complete up to a position of each stream, so a crash between two of them is harmless.
"""


def _records_of(batch: pa.Table) -> Iterator[list[KafkaRecord]]:
    """Yield the records of a batch in pieces; those of a Kafka partition are in the order of their offsets."""
    order = pc.sort_indices(batch, [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")])
    for begin in range(0, len(order), MOST_AT_ONCE):
        some = batch.take(order.slice(begin, MOST_AT_ONCE))
        yield [KafkaRecord(*values) for values in zip(*(column.to_pylist() for column in some.columns), strict=True)]


def _with_writer(archived: DataFrame) -> DataFrame:
    """Return the records of a stream with the columns that `_records_of` expects.

    Spark analyzes these steps once for the stream; steps on a batch would be analyzed again for each batch.
    """
    names = [name for name in KafkaRecord._fields if name != "writer"]
    return archived.select(*names, f.expr(WRITER_SQL).alias("writer"))


WRITER_SQL = f"get(filter(headers, header -> header.key = '{WRITER_HEADER}'), 0).value"
"""Name of the process that published a decision, as bytes: a foreign producer's header may not be text."""


def _warn_of_stale(decisions: Iterable[ReadDecision], newest: Positions, known: set[str]) -> None:
    """Warn once per shard whose decisions come from an era older than its current one; add it to `known`."""
    for one in decisions:
        current, _ = newest.get(one.stream, NOWHERE)
        if one.is_new and one.position[0] < current and one.row.shard not in known:
            known.add(one.row.shard)
            log.warning(
                "dropped decisions of %s: the shard is now in era %d; another `wakeroll run` continues from an old "
                "checkpoint: stop it",
                one.row.shard,
                current,
            )
