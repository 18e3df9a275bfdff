"""record: events and decisions into Delta, each row once."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, RECORDED, Table
from pipeline.operators.ledger import assignment_rows, decision_rows, event_rows, not_yet_in, offset_rows
from pipeline.settings import Settings
from pipeline.sinks.delta import append
from pipeline.sources.kafka import records
from pipeline.tables import ensure_tables, highest_positions, path_of
from pipeline.upkeep import Upkeep
from wakeroll.connection import Topics

NAME = "record"

Positions = dict[tuple[object, ...], int]
"""Stream -> the highest position in it."""


def start(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Start the recording query: control topics and decisions → Delta."""
    connection = settings.connection
    ensure_tables(spark, settings.warehouse, settings.keep_versions_ms)
    topics = (*connection.topics.control, connection.topics.decisions)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
    archived = records(spark, connection, topics, settings.max_offsets_per_batch)
    write, upkeep = writer(spark, settings.warehouse, connection.topics), Upkeep(spark, settings)

    def write_and_look_after(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        upkeep.step()

    return (
        archived.writeStream.foreachBatch(write_and_look_after)
        .option("checkpointLocation", str(settings.checkpoint(NAME)))
        .queryName(NAME)
        .trigger(processingTime=f"{settings.record_interval_ms} milliseconds")
        .start()
    )


def writer(spark: SparkSession, warehouse: Path, topics: Topics) -> Callable[[DataFrame, int], None]:
    """Make the function that writes a batch: every table in a thread of its own, for each commit takes half a second.

    A row is written once, for what is not above the highest position of its stream that the table has is dropped: a
    batch that is repeated, a decision that Kafka holds twice, all of it after a checkpoint was lost.  Positions are a
    table's own, so a crash between the commits of two tables leaves each right.
    """
    highest = {table.name: highest_positions(spark, warehouse, table) for table in RECORDED}

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

            def write_table(table: Table) -> None:
                spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
                seen = highest[table.name]
                news = {stream: at for stream, at in reached[table.name].items() if at > seen.get(stream, -1)}
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


def _reached(batch: DataFrame, decided: DataFrame, topics: Topics) -> dict[str, Positions]:
    """Return the highest position of each stream in a batch: table -> stream -> position.

    One look for all tables, and a second one if there are decisions: each costs as much as an append of some rows.
    """
    found: dict[str, Positions] = {table.name: {} for table in RECORDED}
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
