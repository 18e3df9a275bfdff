"""The Delta sink of Spark, for fences; rows of the ledger are appended by `pipeline.sinks.arrow_sink`."""

from collections.abc import Mapping

from pyspark.sql import DataFrame

from pipeline.storage.place import Folder, Place


def append(rows: DataFrame, path: Folder, options: Mapping[str, str] | None = None) -> None:
    """Append rows to a table, as one file; `options` are those of `pipeline.sinks.table_fence`, if it has one.

    The caller must prevent duplicate rows; it knows the highest position in the table. With Delta's own mechanism for
    this (`txnAppId`), each append reads Delta's log again, which costs more than the append.
    """
    writer = rows.coalesce(1).write.format("delta").mode("append").options(**(options or {}))
    writer.save(Place.of(path).for_spark())
