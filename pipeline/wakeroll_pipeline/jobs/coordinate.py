"""The `coordinate` query: it reads the control topics and publishes decisions."""

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll_pipeline.operators.shard_operator import Counts, decide, with_writer
from wakeroll_pipeline.recovery.checkpoint_state import clear_states
from wakeroll_pipeline.recovery.initial_state import adopt, read_restore
from wakeroll_pipeline.recovery.log_gaps import resume_deciding
from wakeroll_pipeline.runtime.deciding_queries import COORDINATE, query_of, topics_of
from wakeroll_pipeline.runtime.process_locks import process_name
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.kafka_sink import publish
from wakeroll_pipeline.sources.kafka_source import kafka_options, records

NAME = COORDINATE


def start(spark: SparkSession, settings: Settings, counts: Counts | None = None) -> StreamingQuery:
    """Start the deciding query: events → state machines → Kafka; the shards report to `counts`.

    If Kafka has deleted records that were not read yet, their shards begin a new era. A replica never begins an era:
    call `wakeroll_pipeline.recovery.replica_start.join` before.

    Raises:
        InvalidUsage: the states of the checkpoint have another version, or the keys cannot be read.
        NotReachable: no broker answered.
    """
    connection, topics, name = settings.connection, topics_of(settings), query_of(settings)
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", NAME)
    adopt(settings)
    if not settings.replica:
        resume_deciding(spark, settings)
    restore = read_restore(settings)
    start = restore.starting_offsets(topics, settings.partitions)
    events = records(spark, connection, topics, settings.max_offsets_per_batch, start)
    if settings.state_partitions == 1:
        # One task does all work. If it also reads, no shuffle is needed: a second stage costs more than the reading.
        events = events.coalesce(1)
    counts = counts or Counts.start(spark)
    decisions = decide(events, settings.partitions, connection.topics, restore, settings.read_keys(), counts)
    decisions = with_writer(decisions, process_name(settings.replica))
    options, checkpoint = kafka_options(connection), settings.checkpoint(name)
    clear_states(spark, checkpoint)
    return publish(decisions, options, name, checkpoint, settings.batch_interval_ms)
