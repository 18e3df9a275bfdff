"""The tables as other programs open them: each reader sees every row, and the tables demand nothing of a reader."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from wakeroll_model.rows import TABLES
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

READERS: dict[str, Callable[[str], Any]] = {
    "polars": lambda path: pl.scan_delta(path).collect().to_arrow(),
    "pandas": lambda path: DeltaTable(path).to_pandas(),
    "pyarrow dataset": lambda path: DeltaTable(path).to_pyarrow_dataset().to_table(),
    "DuckDB": lambda path: duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset()).to_arrow_table(),
}
"""Program -> how it reads all rows of a table, without anything of ours."""
MARTS = ("storms", "ownership_timeline", "rebalance_cost")


@pytest.fixture(scope="module")
def warehouse(day: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables of a day, with some marts."""
    home = tmp_path_factory.mktemp("shared")
    shutil.copytree(day, home / "warehouse")
    models = ("--select", *(f"+{name}" for name in MARTS), "--exclude-resource-type", "test", "unit_test")
    assert all(one.is_good for one in marts.build(home / "warehouse", home / "logs", *models))
    return home / "warehouse"


@pytest.mark.parametrize("table", [*TABLES, *(f"marts/{name}" for name in MARTS)])
def test_every_reader_sees_the_same_rows(warehouse: Path, table: str):
    """With the columns and their order; all but Spark, which wrote them, and which docs/sql.md asks."""
    path = str(warehouse / table)
    expected = DeltaTable(path).to_pyarrow_table()
    assert expected.num_rows > 0 or table in ("snapshots", "divergences", "chain")
    for reader, read in READERS.items():
        found = read(path)
        columns = list(found.columns if reader == "pandas" else found.column_names)
        rows = len(found)
        assert (reader, columns, rows) == (reader, expected.column_names, expected.num_rows)
        if "at_ms" in columns:
            values = found["at_ms"].tolist() if reader == "pandas" else found["at_ms"].to_pylist()
            assert sorted(values) == sorted(expected["at_ms"].to_pylist())


FREE_OF = ("columnMapping", "deletionVectors", "v2Checkpoint", "timestampNtz", "variantType", "typeWidening")
"""Features that a reader must have for a table that uses them; not every reader has each of them."""


@pytest.mark.parametrize("ledger", ["warehouse", "cut"])
def test_a_reader_of_the_first_protocol_is_enough(ledger: str, request: pytest.FixtureRequest):
    """As Trino, Athena, BigQuery and older readers want it; also after rows were deleted, which `cut` has."""
    for log in sorted(request.getfixturevalue(ledger).rglob("_delta_log")):
        table = DeltaTable(str(log.parent))
        protocol, metadata = table.protocol(), table.metadata()
        features = [*(protocol.reader_features or ()), *(protocol.writer_features or ())]

        assert (log.parent.name, protocol.min_reader_version) == (log.parent.name, 1)
        assert [name for name in features if name in FREE_OF] == []
        assert metadata.configuration.get("delta.columnMapping.mode", "none") == "none"
        assert metadata.configuration["delta.enableDeletionVectors"] == "false"
        assert metadata.partition_columns == []
        # Without column mapping, Parquet's names are those of the columns.
        assert all(re.fullmatch("[a-z_]+", field.name) for field in table.schema().fields)
        assert set(map(repr, types_in(table))) <= TYPES


TYPES = {f'PrimitiveType("{name}")' for name in ("string", "integer", "long", "double", "boolean", "binary")} | {
    'PrimitiveType("timestamp")'
}
"""Delta's types that every reader has."""


def types_in(table: DeltaTable) -> list[Any]:
    """Return the types of the columns of a table, and of the fields of its structs."""
    found = [field.type for field in table.schema().fields]
    for one in found:
        if hasattr(one, "fields"):
            found += [field.type for field in one.fields]
    return [one for one in found if not hasattr(one, "fields")]


def test_the_files_are_of_types_and_codecs_that_old_readers_know(warehouse: Path):
    """No INT96 and no unsigned integer; times are microseconds in UTC."""
    for file in sorted(warehouse.rglob("*.parquet")):
        if "_delta_log" in file.parts:
            continue
        footer = pq.ParquetFile(file)
        groups = [footer.metadata.row_group(number) for number in range(footer.metadata.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]

        assert {column.compression for column in columns} <= {"SNAPPY", "ZSTD"}
        assert {column.physical_type for column in columns} <= {"BYTE_ARRAY", "INT32", "INT64", "DOUBLE", "BOOLEAN"}
        kinds = {str(footer.schema.column(number).logical_type) for number in range(len(footer.schema))}
        assert not [kind for kind in kinds if "isSigned=false" in kind]
        assert [
            kind for kind in kinds if "Timestamp" in kind and "isAdjustedToUTC=true, timeUnit=microseconds" not in kind
        ] == []
