"""Spans of logs: records between two offsets, read without Spark."""

import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from wakeroll.connection import Connection, take
from wakeroll.errors import NotReachable
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S

_AT_ONCE = 1_000
_SLICE_S = 0.2


class Span(NamedTuple):
    """Records of a partition."""

    begin: int
    """Offset of the first record."""
    end: int
    """Offset after the last record."""


def read_spans(connection: Connection, spans: Mapping[ControlPartition, Span]) -> Iterator[Message]:
    """Yield the records of these spans, those of a partition in order.

    The end is given, because Kafka's client reports the end of a log only if no record arrives for a while.

    Args:
        connection: the brokers.
        spans: (topic, partition) -> its records; a span may be empty.

    Raises:
        NotReachable: the records could not be read, or a partition does not have them: its topic was created again, or
            has lost records.
    """
    left = {place for place, span in spans.items() if span.begin < span.end}
    if not left:
        return
    consumer = connection.consumer(**{"enable.partition.eof": True, "log_level": 0, "error_cb": lambda _: None})
    received_s = time.monotonic()
    try:
        consumer.assign([TopicPartition(*place, spans[place].begin) for place in sorted(left)])
        while left:
            for message in take(consumer, _AT_ONCE, _SLICE_S):
                topic, partition, error = message.topic(), message.partition(), message.error()
                assert topic is not None, "a message of an assigned partition has a topic"
                assert partition is not None, "a message of an assigned partition has a partition"
                place = topic, partition
                received_s, offset = received_s if error else time.monotonic(), message.offset()
                assert offset is not None, "a message of an assigned partition has an offset"
                if error is not None:
                    is_over = error.code() == KafkaError._PARTITION_EOF
                    if error.code() == KafkaError._AUTO_OFFSET_RESET or (is_over and offset < spans[place].end):
                        raise _lacks(consumer, place, spans[place])
                    if is_over:  # the last records may be ones that are never delivered
                        left.discard(place)
                    continue
                if offset + 1 >= spans[place].end:
                    left.discard(place)
                if offset < spans[place].end:
                    yield message
            if time.monotonic() - received_s > PATIENCE_S:
                raise NotReachable(f"cannot read {_name_of(min(left))} at {connection.bootstrap} to its end")
    finally:
        consumer.close()


def _lacks(consumer: Consumer, place: ControlPartition, span: Span) -> NotReachable:
    """Return the error for a partition that does not have all records of a span."""
    first, end = consumer.get_watermark_offsets(TopicPartition(*place), timeout=PATIENCE_S)
    return NotReachable(
        f"{_name_of(place)} does not have the records {span.begin} to {span.end - 1}: it begins at {first} and ends at "
        f"{end}; it was created again, or has lost records"
    )


def _name_of(place: ControlPartition) -> str:
    return f"{place[0]}-{place[1]}"
