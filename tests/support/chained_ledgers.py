"""Ledgers with their chains, as `record` writes them, without Spark."""

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from tests.support.ledgers import Story
from wakeroll.connection import Topics
from wakeroll_model.rows import RECORDED, SNAPSHOTS, TABLES, SnapshotRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.batches import Batch
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

BATCHES = 5


def create_tables(warehouse: Path, without: str = "") -> None:
    """Create all tables of a ledger, without rows; an earlier release did not have the column `without`."""
    for table in TABLES.values():
        fields = [field for field in arrow_schema_of(table.row) if field.name != without]
        DeltaTable.create(warehouse / table.name, schema=pa.schema(fields))


def append(
    warehouse: Path, story: Story, chains: Chains, batches: int = BATCHES, *, gathers: bool = True, without: str = ""
) -> None:
    """Append a story as `record` does, without Spark.

    Args:
        warehouse: folder of the tables.
        story: the story.
        chains: the chains of the tables.
        batches: number of batches.
        gathers: whether a minute passes between two batches: each has lines of its own then.
        without: column that the tables do not have.
    """
    sink, topics = ArrowSink(chains=chains), Topics()
    records = [KafkaRecord(*row) for row in story.rows]
    size = -(-len(records) // batches)
    for number, begin in enumerate(range(0, len(records), size), 1):
        if gathers:
            chains.gather(ArrowSink().append)
        some = sorted(records[begin : begin + size], key=lambda one: (one.topic, one.partition, one.offset))
        decisions = read_decisions(one for one in some if one.topic == topics.decisions)
        rows = rows_of((one for one in some if one.topic != topics.decisions), decisions)
        fresh = {table: its for table in RECORDED if (its := [one.row for one in rows[table.name]])}
        batch = Batch(number=number, tables=tuple(table.name for table in fresh))
        for table, its in fresh.items():
            made = arrow_table(table.row, its)
            made = made.select([name for name in made.column_names if name != without])
            sink.append(made, warehouse / table.name, batch.as_metadata())


def append_snapshots(warehouse: Path, story: Story, chains: Chains) -> None:
    """Append the snapshots of a story."""
    rows = [SnapshotRow(**dict(zip(SnapshotRow.__struct_fields__, row, strict=True))) for row in story.snapshots]
    ArrowSink(chains=chains).append(arrow_table(SnapshotRow, rows), warehouse / SNAPSHOTS.name)
