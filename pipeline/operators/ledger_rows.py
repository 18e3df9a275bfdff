"""Transformations of Kafka records to rows of the ledger's tables; each ends with a select of the table's columns."""

from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from model.decision_order import ERA_SQL, SHARD_SQL, order_of, without_era
from model.decisions import Assignment, Handover, Offset
from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, Table
from pipeline.ledger.column_types import checks_of
from pipeline.ledger.schemas import schema_of
from wakeroll.headers import WRITER_HEADER


def event_rows(records: DataFrame) -> DataFrame:
    """Archive records of the control topics, byte for byte."""
    return records.select(
        "topic",
        "partition",
        "offset",
        f.col("timestamp_ms").alias("at_ms"),
        "key",
        "value",
        f.get_json_object(f.col("value").cast("string"), "$.type").alias("type"),
    ).select(*_names(EVENTS))


def read_decisions(records: DataFrame) -> DataFrame:
    """Parse the header of each decision; a column `is_new` shows which are no repetitions within this batch.

    The rule is the one of every reader. Per (Kafka partition, shard without its era), an (era, seq) that is not above
    the highest one before it is a repetition, or comes from a coordinator that another one has replaced. The column
    `writer` names the process that published the decision; null if it did not.
    """
    header = "kind string, shard string, seq bigint, group_id string, client_id string, at_ms bigint, " + (
        f"cause {schema_of(Assignment)['cause'].dataType.simpleString()}"
    )
    json = f.col("value").cast("string")
    shard = Window.partitionBy("partition", f.expr(SHARD_SQL)).orderBy("offset")
    before = shard.rowsBetween(Window.unboundedPreceding, -1)
    writer = f.expr(_WRITER_SQL) if "headers" in records.columns else f.lit(None).cast("string")
    place = f.col("place")
    return (
        records.select("partition", "offset", "timestamp_ms", writer.alias("writer"), json.alias("json"))
        .withColumn("d", f.from_json("json", header))
        .select("partition", "offset", f.col("timestamp_ms").alias("published_ms"), "writer", "json", "d.*")
        .withColumn("place", f.struct(_era().alias("era"), f.col("seq").alias("seq")))
        .withColumn("newest_before", f.max("place").over(before))
        .where(f.col("seq") > 0)
        .withColumn("is_new", f.coalesce(place > f.col("newest_before"), f.lit(True)))
        .select("offset", "writer", "is_new", *_names(DECISIONS))
        .where(_keeps_to(DECISIONS))
    )


def decision_rows(records: DataFrame) -> DataFrame:
    """Parse the header of each decision, and drop repetitions within this batch."""
    return new_decisions(read_decisions(records))


def new_decisions(decisions: DataFrame) -> DataFrame:
    """Select the rows that are no repetitions, with the columns of the table, from the result of `read_decisions`."""
    return decisions.where("is_new").select(*_names(DECISIONS))


def assignment_rows(decisions: DataFrame) -> DataFrame:
    """Select the hand-overs from rows of `decisions`: the owner of a queue from a moment on."""
    return _said(
        decisions,
        Handover,
        f.col("to").alias("client_id"),
        "epoch",
        f.coalesce("assigned_ms", "released_ms", "at_ms").alias("from_ms"),
        f.col("from").alias("previous_client_id"),
        "how",
    ).select(*_names(ASSIGNMENTS))


def offset_rows(decisions: DataFrame) -> DataFrame:
    """Select the committed offsets from rows of `decisions`."""
    # Old decisions, from before the broadcasting mode existed, have no mode.
    mode = f.coalesce("mode", f.lit("clustering")).alias("mode")
    return _said(
        decisions, Offset, "client_id", f.col("offset").alias("committed_offset"), "epoch", "at_ms", "reset_by", mode
    ).select(*_names(OFFSETS))


_WRITER_SQL = f"cast(get(filter(headers, header -> header.key = '{WRITER_HEADER}'), 0).value as string)"

Positions = dict[tuple[object, ...], tuple[int, int]]
"""Stream -> highest (era, position) of the stream in a table.

A stream of decisions is (Kafka partition, shard without its era). Streams of events have no eras; their era is 0.
"""


def position_of(table: Table, stream: tuple[object, ...], position: int) -> tuple[tuple[object, ...], tuple[int, int]]:
    """Return a stream without its era, and (era, position); `stream` has the values of the table's rows."""
    if table is EVENTS:
        return stream, (0, position)
    partition, shard = stream
    return (partition, without_era(str(shard))), order_of(str(shard), position)


def newest_of(table: Table, highest: Mapping[tuple[object, ...], int]) -> Positions:
    """Return the highest (era, position) of each stream, from the highest position of each stream and era."""
    newest: Positions = {}
    for its_stream, its_position in highest.items():
        stream, position = position_of(table, its_stream, its_position)
        newest[stream] = max(newest.get(stream, position), position)
    return newest


def not_yet_in(table: Table, newest: Positions) -> Column:
    """Return the condition that rows are above the highest (era, position) of their stream in the table."""
    is_event, position = table is EVENTS, f.col(table.position)
    names = ["topic", "partition"] if is_event else ["partition", SHARD_SQL]
    is_new = f.lit(True)
    for stream, (era, at) in sorted(newest.items(), key=repr):
        mine = reduce(and_, (f.expr(name) == f.lit(value) for name, value in zip(names, stream, strict=True)))
        above = position > at
        is_new = f.when(mine, above if is_event else (_era() > era) | ((_era() == era) & above)).otherwise(is_new)
    return is_new


def _era() -> Column:
    return f.coalesce(f.expr(ERA_SQL), f.lit(0))


def _said(decisions: DataFrame, kind: type[Handover | Offset], *columns: Column | str) -> DataFrame:
    """Select the decisions of one kind about queues: shard, seq, group, queue, and these columns of the decision."""
    said = f.from_json("json", schema_of(kind)).alias("said")
    return (
        decisions.where(f.col("kind") == f.lit(kind.__struct_config__.tag))
        .select("partition", said)
        .select("partition", "said.*")
        .select("shard", "seq", "partition", "group_id", "queue.topic", "queue.broker", "queue.queue_id", *columns)
    )


def _keeps_to(table: Table) -> Column:
    """Return the condition that rows satisfy the table's NOT NULL and CHECK constraints.

    Without it, a single bad row would fail every batch. Only a record of a foreign producer can be bad, and such a
    record is not a decision.
    """
    rules = [f"{column.name} is not null" for column in schema_of(table.row) if not column.nullable]
    return f.expr(" and ".join([*rules, *checks_of(table.row).values()]))


def _names(table: Table) -> list[str]:
    return list(schema_of(table.row).names)
