"""From records of Kafka to rows of the ledger's tables; each transform ends with the select that is its contract."""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from model.decisions import Assignment, Handover, Offset
from model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, Table
from pipeline.schemas import checks_of, schema_of


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


def decision_rows(records: DataFrame) -> DataFrame:
    """Read the header of each decision, and drop the repetitions within this batch.

    As every reader does: per (Kafka partition, shard) a seq that is not above the highest before it was seen already.
    """
    header = "kind string, shard string, seq bigint, group_id string, client_id string, at_ms bigint, " + (
        f"cause {schema_of(Assignment)['cause'].dataType.simpleString()}"
    )
    json = f.col("value").cast("string")
    before = Window.partitionBy("partition", "shard").orderBy("offset").rowsBetween(Window.unboundedPreceding, -1)
    return (
        records.select("partition", "offset", "timestamp_ms", json.alias("json"), f.from_json(json, header).alias("d"))
        .select("partition", "offset", f.col("timestamp_ms").alias("published_ms"), "json", "d.*")
        .withColumn("highest_before", f.coalesce(f.max("seq").over(before), f.lit(0)))
        .where(f.col("seq") > f.col("highest_before"))
        .select(*_names(DECISIONS))
        .where(_keeps_to(DECISIONS))
    )


def assignment_rows(decisions: DataFrame) -> DataFrame:
    """Take the hand-overs out of rows of `decisions`: who owns a queue from when on."""
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
    """Take the committed offsets out of rows of `decisions`."""
    # A decision of before there were two modes does not say it.
    mode = f.coalesce("mode", f.lit("clustering")).alias("mode")
    return _said(
        decisions, Offset, "client_id", f.col("offset").alias("committed_offset"), "epoch", "at_ms", "reset_by", mode
    ).select(*_names(OFFSETS))


def not_yet_in(table: Table, highest: dict[tuple[object, ...], int]) -> Column:
    """Condition on rows: they stand above the highest position that the table has of their stream."""
    above = f.lit(-1)
    for stream, position in sorted(highest.items(), key=repr):
        mine = f.lit(True)
        for column, value in zip(table.stream, stream, strict=True):
            mine = mine & (f.col(column) == f.lit(value))
        above = f.when(mine, f.lit(position)).otherwise(above)
    return f.col(table.position) > above


def _said(decisions: DataFrame, kind: type[Handover | Offset], *columns: Column | str) -> DataFrame:
    """Take the decisions of one kind, each about a queue: whose and which, and these columns of what they say."""
    said = f.from_json("json", schema_of(kind)).alias("said")
    return (
        decisions.where(f.col("kind") == f.lit(kind.__struct_config__.tag))
        .select("partition", said)
        .select("partition", "said.*")
        .select("shard", "seq", "partition", "group_id", "queue.topic", "queue.broker", "queue.queue_id", *columns)
    )


def _keeps_to(table: Table) -> Column:
    """Condition on rows: they keep to the table's NOT NULL and CHECK; one that did not would kill every batch.

    Only a stray producer's record can break it, and that is no decision.
    """
    rules = [f"{column.name} is not null" for column in schema_of(table.row) if not column.nullable]
    return f.expr(" and ".join([*rules, *checks_of(table.row).values()]))


def _names(table: Table) -> list[str]:
    return list(schema_of(table.row).names)
