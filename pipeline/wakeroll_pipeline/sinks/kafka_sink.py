"""The Kafka sink: it publishes decisions at least once; readers skip repetitions by (shard, seq)."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll_model.config import MAX_RECORD_BYTES
from wakeroll_pipeline.storage.place import Place


def publish(
    decisions: DataFrame, options: Mapping[str, str], query: str, checkpoint: Place, interval_ms: int
) -> StreamingQuery:
    """Start publishing rows of (topic, key, value): one batch per interval, or as soon as the previous one is done."""
    return (
        decisions.writeStream.format("kafka")
        .options(**options)
        .option("kafka.max.request.size", MAX_RECORD_BYTES + 4_096)
        .option("kafka.linger.ms", 0)
        .option("checkpointLocation", checkpoint.for_spark())
        .queryName(query)
        .outputMode("append")
        .trigger(processingTime=f"{interval_ms} milliseconds")
        .start()
    )
