"""The Python workers of Spark, started before the first batch needs them: their imports take a second or two."""

import threading
from collections.abc import Iterator
from contextlib import suppress

import pandas as pd
from pyspark.sql import SparkSession


def warm_workers(spark: SparkSession, count: int) -> None:
    """Start workers in the background; a later query of this session uses them again.

    Nothing is reported: if it fails, the first batch starts its workers itself.

    Args:
        spark: the session.
        count: number of tasks that call Python at once.
    """

    def warm() -> None:
        with suppress(Exception):  # the session may be stopped meanwhile, which Py4J reports in many ways
            spark.range(count, numPartitions=count).mapInPandas(_imported, "id long").collect()

    threading.Thread(target=warm, name="warm-workers", daemon=True).start()


def _imported(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Import what the deciding query calls."""
    from pipeline.operators.shard_operator import freeze_imports

    freeze_imports()
    yield from frames
