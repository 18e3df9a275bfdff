"""Rows of `assignments` and `offsets` as Spark derives them from `decisions`; a rule compares them with the tables.

`record` derives its rows in Python (`wakeroll_pipeline.operators.ledger_rows`), so this is an independent second
derivation.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from wakeroll_model.decisions import Handover, Offset
from wakeroll_model.rows import ASSIGNMENTS, OFFSETS, Table
from wakeroll_pipeline.ledger.schemas import schema_of


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
        decisions,
        Offset,
        *("client_id", f.col("offset").alias("committed_offset"), "epoch", "at_ms", "reset_by", mode, "deleted"),
    ).select(*_names(OFFSETS))


def _said(decisions: DataFrame, kind: type[Handover | Offset], *columns: Column | str) -> DataFrame:
    """Select the decisions of one kind about queues: shard, seq, group, queue, and these columns of the decision."""
    said = f.from_json("json", schema_of(kind)).alias("said")
    return (
        decisions.where(f.col("kind") == f.lit(kind.__struct_config__.tag))
        .select("partition", said)
        .select("partition", "said.*")
        .select("shard", "seq", "partition", "group_id", "queue.topic", "queue.broker", "queue.queue_id", *columns)
    )


def _names(table: Table) -> list[str]:
    return list(schema_of(table.row).names)
