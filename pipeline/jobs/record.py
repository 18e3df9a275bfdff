"""The `record` query: it writes events and decisions to Delta, each row exactly once."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, RECORDED, Table
from pipeline.jobs.divergences import Divergences
from pipeline.jobs.record_turn import Turn
from pipeline.ledger.maintenance import Report, Upkeep
from pipeline.ledger.tables import ensure_tables, highest_positions, path_of
from pipeline.operators.ledger_rows import (
    Positions,
    assignment_rows,
    event_rows,
    new_decisions,
    newest_of,
    not_yet_in,
    offset_rows,
    position_of,
    read_decisions,
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


def start(
    spark: SparkSession,
    settings: Settings,
    report: Report | None = None,
    turn: Turn | None = None,
    diverged: Callable[[int], None] | None = None,
) -> StreamingQuery:
    """Start the recording query: control topics and decisions → Delta.

    Records that Kafka deleted before they were read are reported in the log.

    Args:
        spark: a session.
        settings: settings of the deployment.
        report: receives each step of upkeep.
        turn: the right to write the tables, if other processes wait for it; None: nobody else can write them.
        diverged: receives the number of decisions since the start that differ from those of another coordinator.

    Raises:
        InvalidUsage: a table conflicts with its declaration, and no migration solves it.
        NotReachable: no broker answered.
    """
    connection = settings.connection
    ensure_tables(spark, settings.warehouse, settings.keep_versions_ms)
    topics = (*connection.topics.control, connection.topics.decisions)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
    turn = turn or Turn(settings)
    begin = resume_recording(settings, turn.checkpoint, turn.before)
    archived = records(spark, connection, topics, settings.max_offsets_per_batch, begin, more=["headers"])
    write = writer(spark, settings.warehouse, connection.topics, turn, diverged)
    upkeep = Upkeep(spark, settings, report)

    def write_and_look_after(batch: DataFrame, batch_id: int) -> None:
        turn.confirm()
        write(batch, batch_id)
        turn.confirm()  # if another process has the turn by now, it drops these appends, and reads the batch itself
        upkeep.step()

    return (
        archived.writeStream.foreachBatch(write_and_look_after)
        .option("checkpointLocation", settings.checkpoint(turn.checkpoint).for_spark())
        .queryName(NAME)
        .trigger(processingTime=f"{settings.record_interval_ms} milliseconds")
        .start()
    )


def writer(
    spark: SparkSession,
    warehouse: Folder,
    topics: Topics,
    turn: Turn | None = None,
    diverged: Callable[[int], None] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return the function that writes a batch. Each table has its own thread, because each commit takes half a second.

    Each row is written once: rows that are not above the table's highest position of their stream are dropped. Such
    rows come from a repeated batch, from a decision that Kafka contains twice, or from all records after the loss of a
    checkpoint. Decisions of an older era than the shard's current one are dropped too: another coordinator made them.
    Each table has its own positions, so all tables stay correct after a crash between two commits.

    If several processes may write, the positions are read after `turn` has excluded all earlier ones.
    """
    options = None if turn is None else turn.options(spark, warehouse)
    newest = {table.name: newest_of(table, highest_positions(spark, warehouse, table)) for table in RECORDED}
    stale: set[str] = set()
    divergences = Divergences(spark, warehouse, options)

    def write(batch: DataFrame, _batch_id: int) -> None:
        read = read_decisions(batch.where(f.col("topic") == topics.decisions))
        decided = new_decisions(read)
        rows = {
            EVENTS.name: event_rows(batch.where(f.col("topic").isin(*topics.control))),
            DECISIONS.name: decided,
            ASSIGNMENTS.name: assignment_rows(decided),
            OFFSETS.name: offset_rows(decided),
        }
        batch.persist()
        read.persist()
        try:
            reached, published = _reached(batch, read, topics)
            _warn_of_stale(reached[DECISIONS.name], newest[DECISIONS.name], stale)

            def write_table(table: Table) -> None:
                spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
                seen = newest[table.name]
                its = newest_of(table, reached[table.name])
                news = {stream: at for stream, at in its.items() if at > seen.get(stream, _NOWHERE)}
                if news:
                    fresh = rows[table.name].where(not_yet_in(table, seen))
                    path = path_of(warehouse, table)
                    append(fresh, path, **({} if options is None else {"options": options(path)}))
                    seen.update(news)

            with ThreadPoolExecutor(len(RECORDED)) as threads:
                list(threads.map(write_table, RECORDED))
            divergences.look_at(read, *published)
            if diverged is not None:
                diverged(divergences.count)
        finally:
            read.unpersist()
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


def _reached(
    batch: DataFrame, read: DataFrame, topics: Topics
) -> tuple[dict[str, Highest], tuple[int, frozenset[str]]]:
    """Return the highest position of each stream in a batch, and who published its decisions.

    Returns:
        Table -> stream -> position; and the number of decisions, with repetitions, and the names of their writers.

    One query serves all tables, and a second one follows if there are decisions: each costs as much as a small append.
    """
    found: dict[str, Highest] = {table.name: {} for table in RECORDED}
    has_decisions, count, writers = False, 0, set[str]()
    for row in batch.groupBy(*EVENTS.stream).agg(f.max(EVENTS.position).alias("at")).collect():
        if row.topic == topics.decisions:
            has_decisions = True
        else:
            found[EVENTS.name][row.topic, row.partition] = row.at
    if has_decisions:
        kind, seq = f.col("kind"), f.when(f.col("is_new"), f.col(DECISIONS.position))
        looked = read.groupBy(*DECISIONS.stream).agg(
            f.count("*").alias("published"),
            f.collect_set("writer").alias("writers"),
            f.max(seq).alias(DECISIONS.name),
            f.max(f.when(kind == "handover", seq)).alias(ASSIGNMENTS.name),
            f.max(f.when(kind == "offset", seq)).alias(OFFSETS.name),
        )
        for row in looked.collect():
            count += row.published
            writers |= set(row.writers)
            for table in (DECISIONS, ASSIGNMENTS, OFFSETS):
                if row[table.name] is not None:
                    found[table.name][row.partition, row.shard] = row[table.name]
    return found, (count, frozenset(writers))
