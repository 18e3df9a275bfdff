"""From messages to arrivals: what a message says of itself in its headers; what is in it stays in it."""

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import pandas as pd
from pyspark.sql import DataFrame

from model.events import Arrival
from model.filters import tags_code
from model.queue import Queue
from pipeline.operators.shard_operator import PUBLISHED, Frames
from wakeroll.connection import Topics
from wakeroll.headers import TAGS_HEADER, fits, texts_of

_encode = msgspec.json.Encoder().encode


def arrivals(messages: DataFrame, topics: Topics) -> DataFrame:
    """Tell of messages that they arrived; return what to publish: topic, key, value.

    Args:
        messages: topic, partition, offset, timestamp_ms, headers.
        topics: where arrivals go.
    """
    return messages.mapInPandas(partial(_told, topics.queues), PUBLISHED)


def arrival_of(
    topic: str, partition: int, offset: int, stored_ms: int, headers: Iterable[tuple[str, bytes | None]]
) -> Arrival:
    """Return the arrival of a message.

    A header that is no text is no property.  What an arrival has no room for (more than 256 headers, or too long a one)
    is not known of the message then, and an arrival of which something is not known is for everybody.
    """
    texts = texts_of(headers)
    tags = texts.pop(TAGS_HEADER, "")
    if not fits("tags", tags):
        tags = None
    # All of them or none: a condition on a part would judge wrongly.
    properties = {name: text for name, text in texts.items() if text is not None}
    return Arrival(
        queue=Queue(topic, "", partition),
        next_offset=offset + 1,
        tags=tags,
        tags_code=None if tags is None else tags_code(tags),
        properties=properties if fits("properties", properties) else None,
        stored_ms=stored_ms if stored_ms >= 0 else None,
    )


def _told(topic: str, frames: Frames) -> Iterator[pd.DataFrame]:
    """Run over some messages of a batch.

    Of a queue's messages that say the same of themselves the last one is told of: whom it does not wake, the ones
    before would not have woken either.
    """
    newest: dict[tuple[str, str | None, str], Arrival] = {}
    for frame in frames:
        columns = (frame[name] for name in ("topic", "partition", "offset", "timestamp_ms", "headers"))
        for name, partition, offset, timestamp_ms, headers in zip(*columns, strict=True):
            said = [] if headers is None else [(header["key"], header["value"]) for header in headers]
            arrival = arrival_of(name, int(partition), int(offset), int(timestamp_ms), said)
            alike = (arrival.queue.key, arrival.tags, repr(arrival.properties))
            before = newest.get(alike)
            if before is None or before.next_offset < arrival.next_offset:
                newest[alike] = arrival
    published = [(topic, arrival.queue.key.encode(), _encode(arrival)) for arrival in newest.values()]
    if published:
        yield pd.DataFrame(published, columns=["topic", "key", "value"])
