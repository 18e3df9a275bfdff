"""The floor of the deciding path: ``python -m bench.spark_floor TOPIC``.

It corresponds to `wakeroll run`, with the same session, source, sink and `record`, but without state and without
Python. It copies each record about a group or a queue to the topic, with the record's log time (epoch ms, as text) as
the key.
"""

import os
import sys

from pyspark.sql import functions as f

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.jobs import record
from wakeroll_pipeline.jobs.supervise import POLL_S, raise_if_dead, stop_between_batches
from wakeroll_pipeline.runtime.stop_signals import StopSignals
from wakeroll_pipeline.sinks.kafka_sink import publish
from wakeroll_pipeline.sources.kafka_source import kafka_options, records
from wakeroll_pipeline.spark.session import start_session

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


if __name__ == "__main__":
    passing(sys.argv[1])
