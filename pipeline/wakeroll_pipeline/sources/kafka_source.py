"""The Kafka source: records of topics as a stream, with key and value as bytes, offsets, and the broker's time."""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.java_properties import java_settings

# Longest time that a broker waits for records before it answers a fetch (ms). The records that Spark fetches exist
# already. But its consumer then sends a second fetch, for the records after them, and on the same connection a request
# for the first and the last offset. The broker answers it only after that fetch: once per partition and batch.
_FETCH_WAIT_MS = 0
# Each task has a consumer that buffers fetched records. With Kafka's default of 50 MiB, four of them would take a
# quarter of the heap. A larger record is still fetched, alone.
_FETCH_BYTES = 4 * 1024 * 1024
# Brokers may come back at other addresses, all at once. By default, a Java client of Kafka 3 then knows only the old
# ones for ever; librdkafka and later versions look up the addresses of the settings again.
_RECOVERY = {"metadata.recovery.strategy": "rebootstrap"}


def records(
    spark: SparkSession,
    connection: Connection,
    topics: Sequence[str],
    most: int,
    start: str = "earliest",
    more: Sequence[str] = (),
) -> DataFrame:
    """Read topics from `start` on, at most `most` records per batch; `more` are further columns, such as ``headers``.

    `start` is ``earliest`` or offsets in the JSON of Spark's Kafka source; an existing checkpoint takes precedence.
    Lost records stop the query: a coordinator that skipped a heartbeat would decide differently in a replay.
    """
    stream = spark.readStream.format("kafka").options(**kafka_options(connection))
    return (
        stream.option("subscribe", ",".join(topics))
        .option("startingOffsets", start)
        .option("includeHeaders", "headers" in more)
        .option("maxOffsetsPerTrigger", most)
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .option("kafka.fetch.max.bytes", _FETCH_BYTES)
        .option("kafka.max.partition.fetch.bytes", _FETCH_BYTES)
        .load()
        .select("topic", "partition", "offset", f.unix_millis("timestamp").alias("timestamp_ms"), "key", "value", *more)
    )


def headers(spark: SparkSession, connection: Connection, topics: Sequence[str], most: int) -> DataFrame:
    """Read the headers of topics from their ends on, without keys and values.

    An existing checkpoint takes precedence. Messages that are deleted before they are read are skipped.
    """
    stream = spark.readStream.format("kafka").options(**kafka_options(connection))
    return (
        stream.option("subscribe", ",".join(topics))
        .option("startingOffsets", "latest")
        .option("failOnDataLoss", "false")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", most)
        .option("kafka.fetch.max.wait.ms", _FETCH_WAIT_MS)
        .load()
        .select("topic", "partition", "offset", f.unix_millis("timestamp").alias("timestamp_ms"), "headers")
    )


def kafka_options(connection: Connection) -> Mapping[str, str]:
    """Return the options of Spark's Kafka source and sink for a connection.

    Raises:
        InvalidUsage: a setting of the login has no equivalent in Kafka's Java client.
    """
    settings = {"bootstrap.servers": connection.bootstrap, **_RECOVERY, **java_settings(connection.config)}
    return {f"kafka.{name}": value for name, value in settings.items()}
