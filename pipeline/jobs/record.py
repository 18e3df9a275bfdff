"""The `record` query: it writes events and decisions to Delta, each row exactly once."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, RECORDED, Table
from pipeline.ledger.maintenance import Report, Upkeep
from pipeline.ledger.tables import ensure_tables, highest_positions, path_of
from pipeline.operators.ledger_rows import (
    Positions,
    assignment_rows,
    decision_rows,
    event_rows,
    newest_of,
    not_yet_in,
    offset_rows,
    position_of,
)
from pipeline.recovery.log_gaps import resume_recording
from pipeline.runtime.deciding_queries import RECORD
from pipeline.settings import Settings
from pipeline.sinks.delta_sink import append
from pipeline.sources.kafka_source import records
from pipeline.storage.place import Folder
from wakeroll.connection import Topics

NAME = RECORD

log = logging.getLogger("wakeroll.run")

Highest = dict[tuple[object, ...], int]
"""(Stream, including its era) -> highest position in it."""


def start(spark: SparkSession, settings: Settings, report: Report | None = None) -> StreamingQuery:
    """Start the recording query: control topics and decisions → Delta.

    Records that Kafka deleted before they were read are reported in the log; `report` receives each step of upkeep.

    Raises:
        InvalidUsage: a table conflicts with its declaration, and no migration solves it.
        NotReachable: no broker answered.
    """
    connection = settings.connection
    ensure_tables(spark, settings.warehouse, settings.keep_versions_ms)
    topics = (*connection.topics.control, connection.topics.decisions)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
    begin = resume_recording(settings, NAME)
    archived = records(spark, connection, topics, settings.max_offsets_per_batch, begin)
    write, upkeep = writer(spark, settings.warehouse, connection.topics), Upkeep(spark, settings, report)

    def write_and_look_after(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        upkeep.step()

    return (
        archived.writeStream.foreachBatch(write_and_look_after)
        .option("checkpointLocation", settings.checkpoint(NAME).for_spark())
        .queryName(NAME)
        .trigger(processingTime=f"{settings.record_interval_ms} milliseconds")
        .start()
    )


def writer(spark: SparkSession, warehouse: Folder, topics: Topics) -> Callable[[DataFrame, int], None]:
    """Return the function that writes a batch. Each table has its own thread, because each commit takes half a second.

    Each row is written once: rows that are not above the table's highest position of their stream are dropped. Such
    rows come from a repeated batch, from a decision that Kafka contains twice, or from all records after the loss of a
    checkpoint. Decisions of an older era than the shard's current one are dropped too: another coordinator made them.
    Each table has its own positions, so all tables stay correct after a crash between two commits.
    """
    newest = {table.name: newest_of(table, highest_positions(spark, warehouse, table)) for table in RECORDED}
    stale: set[str] = set()

    def write(batch: DataFrame, _batch_id: int) -> None:
        decided = decision_rows(batch.where(f.col("topic") == topics.decisions))
        rows = {
            EVENTS.name: event_rows(batch.where(f.col("topic").isin(*topics.control))),
            DECISIONS.name: decided,
            ASSIGNMENTS.name: assignment_rows(decided),
            OFFSETS.name: offset_rows(decided),
        }
        batch.persist()
        decided.persist()
        try:
            reached = _reached(batch, decided, topics)
            _warn_of_stale(reached[DECISIONS.name], newest[DECISIONS.name], stale)

            def write_table(table: Table) -> None:
                spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
                seen = newest[table.name]
                its = newest_of(table, reached[table.name])
                news = {stream: at for stream, at in its.items() if at > seen.get(stream, _NOWHERE)}
                if news:
                    fresh = rows[table.name].where(not_yet_in(table, seen))
                    append(fresh, path_of(warehouse, table))
                    seen.update(news)

            with ThreadPoolExecutor(len(RECORDED)) as threads:
                list(threads.map(write_table, RECORDED))
        finally:
            decided.unpersist()
            batch.unpersist()

    return write


_NOWHERE = (-1, -1)


def _warn_of_stale(reached: Highest, newest: Positions, known: set[str]) -> None:
    """Warn once per shard whose decisions come from an era older than its current one; add it to `known`."""
    for its_stream, position in reached.items():
        stream, (era, _) = position_of(DECISIONS, its_stream, position)
        current, _ = newest.get(stream, _NOWHERE)
        shard = str(its_stream[1])
        if era < current and shard not in known:
            known.add(shard)
            log.warning(
                "dropped decisions of %s: the shard is now in era %d; another `wakeroll run` continues from an old "
                "checkpoint: stop it",
                shard,
                current,
            )


def _reached(batch: DataFrame, decided: DataFrame, topics: Topics) -> dict[str, Highest]:
    """Return the highest position of each stream in a batch: table -> stream -> position.

    One query serves all tables, and a second one follows if there are decisions: each costs as much as a small append.
    """
    found: dict[str, Highest] = {table.name: {} for table in RECORDED}
    has_decisions = False
    for row in batch.groupBy(*EVENTS.stream).agg(f.max(EVENTS.position).alias("at")).collect():
        if row.topic == topics.decisions:
            has_decisions = True
        else:
            found[EVENTS.name][row.topic, row.partition] = row.at
    if has_decisions:
        kind, seq = f.col("kind"), f.col(DECISIONS.position)
        looked = decided.groupBy(*DECISIONS.stream).agg(
            f.max(seq).alias(DECISIONS.name),
            f.max(f.when(kind == "handover", seq)).alias(ASSIGNMENTS.name),
            f.max(f.when(kind == "offset", seq)).alias(OFFSETS.name),
        )
        for row in looked.collect():
            for table in (DECISIONS, ASSIGNMENTS, OFFSETS):
                if row[table.name] is not None:
                    found[table.name][row.partition, row.shard] = row[table.name]
    return found
