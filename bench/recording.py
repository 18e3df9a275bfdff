"""``python -m bench.recording --home HOME FILE...``: write Kafka records to the ledger, as `record` does.

Each FILE is a batch: Parquet with the columns of `record`'s source. A FILE whose name begins with `snapshots` has rows
of that table.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from msgspec.structs import astuple
from pyspark.sql import SparkSession

from bench.control_topic import ControlTopic, snapshots_of
from wakeroll.connection import Topics
from wakeroll_model.decisions import AnyDecision
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.tables import ensure_tables, path_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.delta_sink import append
from wakeroll_pipeline.spark.session import start_session

PUBLISHED_LATER_MS = 300
RECORDS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp_ms": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
    }
)
"""Columns of the records, as `record` reads them."""
_SNAPSHOTS = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "era": pa.int64(),
        "version": pa.int64(),
        "at_ms": pa.int64(),
        "body": pa.binary(),
        "row_hash": pa.string(),
    }
)


class Batch:
    """Records of Kafka, of the control topics and of the decisions, until they are written to a file."""

    def __init__(self, partitions: int) -> None:
        """Start without records; each topic has so many partitions."""
        self.events = 0
        """That were heard, in this batch and before it."""
        self._rows: list[tuple[str, int, int, int, bytes | None, bytes | None]] = []
        self._next_offsets = [0] * partitions

    def hear(self, record: Record, decisions: Sequence[AnyDecision]) -> None:
        """Take an event's record, and those of what was decided of it."""
        self.events += 1
        at, partition = record.timestamp_ms, record.partition
        self._rows.append((record.topic, partition, record.offset, at, record.key, record.value))
        for decision in decisions:
            offset = self._next_offsets[partition]
            self._next_offsets[partition] += 1
            value = encode_decision(decision)
            self._rows.append((Topics().decisions, partition, offset, at + PUBLISHED_LATER_MS, b"", value))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self._rows

    def write(self, path: Path) -> None:
        """Write what there is to a file, and forget it."""
        _write(self._rows, RECORDS, path)
        self.forget()

    def forget(self) -> None:
        """Forget what there is; the offsets go on."""
        self._rows.clear()


def write_snapshots(topics: Sequence[ControlTopic], path: Path) -> None:
    """Write the state of all shards to a file."""
    _write(list(map(astuple, snapshots_of(topics))), _SNAPSHOTS, path)


def append_snapshots(spark: SparkSession, settings: Settings, file: Path) -> None:
    """Append the rows of a file of `write_snapshots` to their table."""
    rows = spark.read.parquet(str(file.absolute()))
    columns = [rows[field.name].cast(field.dataType) for field in schema_of(SNAPSHOTS.row)]
    append(rows.select(*columns), path_of(settings.warehouse, SNAPSHOTS))


def _write(rows: Sequence[tuple[object, ...]], schema: pa.Schema, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    pq.write_table(pa.table(columns, schema), path)


def main(arguments: list[str] | None = None) -> int:
    """Write the files' rows, one batch after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench.recording", description=__doc__.splitlines()[0])
    parser.add_argument("--home", required=True)
    parser.add_argument("files", nargs="+", type=Path)
    given = parser.parse_args(arguments)
    settings = Settings(home=given.home)
    spark = start_session(settings, "bench.recording")
    try:
        ensure_tables(spark, settings.warehouse)
        write = record.writer(settings.warehouse, Topics())
        for number, file in enumerate(given.files):
            if file.name.startswith(SNAPSHOTS.name):
                append_snapshots(spark, settings, file)
            else:
                write(spark.read.parquet(str(file.absolute())), number)
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
