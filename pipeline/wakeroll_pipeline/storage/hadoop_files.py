"""Folders that Hadoop's clients have written, deleted by Hadoop's client.

In an object store, Hadoop marks folders with objects that other clients do not list, so
`wakeroll_pipeline.storage.small_files` does not delete them. Spark and Delta treat a marked folder as an existing one.
"""

from pyspark.sql import SparkSession

from wakeroll_pipeline.storage.place import Place


def delete_with_marks(spark: SparkSession, folder: Place) -> None:
    """Delete a folder and all that is in it, if it exists."""
    path = spark._jvm.org.apache.hadoop.fs.Path(folder.for_spark())  # type: ignore[union-attr]
    path.getFileSystem(spark._jsc.hadoopConfiguration()).delete(path, True)
