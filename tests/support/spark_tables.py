"""Rows of Spark in Delta tables, appended by Spark."""

from pyspark.sql import DataFrame

from wakeroll_pipeline.storage.place import Folder, Place


def append(rows: DataFrame, path: Folder) -> None:
    """Append rows to a table without a fence, as one file.

    The caller must prevent duplicate rows. Delta's own mechanism for this (`txnAppId`) drops rows without an error.
    """
    rows.coalesce(1).write.format("delta").mode("append").save(Place.of(path).for_spark())
