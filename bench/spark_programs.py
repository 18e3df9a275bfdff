"""Programs with a Spark of their own: ``python -m bench.spark_programs NAME ...``.

``passing TOPIC``: the floor of the deciding path. It corresponds to `wakeroll run`, with the same session, source, sink
and `record`, but without state and without Python. It copies each record about a group or a queue to the topic, with
the record's log time (epoch ms, as text) as the key.

``reading HOME``: the floor of all queries to the ledger. It only reads `events`, and prints the seconds.

``tables HOME``: it creates the tables of a ledger, as `run` does.
"""

import os
import sys
import time

import msgspec
from pyspark.sql import functions as f

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.supervise import POLL_S, raise_if_dead, stop_between_batches
from wakeroll_pipeline.ledger.tables import ensure_tables, open_views
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.kafka_sink import publish
from wakeroll_pipeline.sources.kafka_source import kafka_options, records
from wakeroll_pipeline.spark.session import start_brief_session, start_session

_FLOOR = "floor"


def passing(topic: str) -> None:
    """Pass records through until SIGTERM; settings come from the environment, as for `wakeroll run`."""
    settings = load(os.environ)
    connection = settings.connection
    spark = start_session(settings, _FLOOR)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", _FLOOR)
    events = records(spark, connection, connection.topics.control, settings.max_offsets_per_batch)
    # Ticks and routes have no key, and lead to no decisions while nothing is due.
    passed = events.where(f.col("key").isNotNull()).select(
        f.lit(topic).alias("topic"), f.col("timestamp_ms").cast("string").cast("binary").alias("key"), "value"
    )
    queries = [
        publish(passed, kafka_options(connection), _FLOOR, settings.checkpoint(_FLOOR), settings.batch_interval_ms),
        record.start(spark, settings),
    ]
    stop = StopSignals().asked
    try:
        while not stop.wait(POLL_S):
            for query in queries:
                raise_if_dead(query)
        for query in queries:
            stop_between_batches(query)
    finally:
        spark.stop()


def reading(home: str) -> None:
    """Read all columns of `events`, and print the seconds; Spark was there already."""
    settings = Settings(home=home)
    spark = start_brief_session(settings, "bench.reading")
    try:
        open_views(spark, settings.warehouse)
        events = spark.table("events")
        sizes = (f.octet_length(f.coalesce(events[name].cast("string"), f.lit(""))) for name in events.columns)
        began = time.monotonic()
        events.select(f.sum(sum(sizes, f.lit(0))).alias("bytes")).collect()
        seconds = time.monotonic() - began
    finally:
        spark.stop()
    sys.stdout.buffer.write(msgspec.json.encode(round(seconds, 2)) + b"\n")


def tables(home: str) -> None:
    """Create the tables."""
    settings = Settings(home=home)
    spark = start_brief_session(settings, "bench.tables")
    try:
        ensure_tables(spark, settings.warehouse)
    finally:
        spark.stop()


if __name__ == "__main__":
    {"passing": passing, "reading": reading, "tables": tables}[sys.argv[1]](sys.argv[2])
