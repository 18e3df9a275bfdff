"""Rows into Delta."""

from pathlib import Path

from pyspark.sql import DataFrame


def append(rows: DataFrame, path: Path) -> None:
    """Append rows to a table, as one file.

    Else each Kafka partition of a batch would be a file of some rows, and upkeep would have to read them all again.

    That none is there twice is the caller's affair: he knows how far the table has come.  Delta's own mark for that
    (`txnAppId`) makes it read its log anew at each append, which costs more than the append.
    """
    rows.coalesce(1).write.format("delta").mode("append").save(str(path))
