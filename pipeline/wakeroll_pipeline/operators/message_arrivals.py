"""The operator of `tap`: it converts the headers of messages to arrivals; keys and values are not read."""

from collections.abc import Iterable, Iterator
from functools import partial

import msgspec
import pandas as pd
from pyspark.sql import DataFrame

from wakeroll.connection import Topics
from wakeroll.headers import described
from wakeroll_model.events import Arrival
from wakeroll_model.filters import tags_code
from wakeroll_model.queue import Queue
from wakeroll_pipeline.operators.shard_operator import PUBLISHED, Frames

_encode = msgspec.json.Encoder().encode


def arrivals(messages: DataFrame, topics: Topics) -> DataFrame:
    """Convert messages to arrivals; return rows to publish: topic, key, value.

    Args:
        messages: topic, partition, offset, timestamp_ms, headers.
        topics: names of the control plane's topics.
    """
    return messages.mapInPandas(partial(_arrivals_in, topics.queues), PUBLISHED)


def arrival_of(
    topic: str, partition: int, offset: int, stored_ms: int, headers: Iterable[tuple[str, bytes | None]]
) -> Arrival:
    """Return the arrival of a message.

    A header that is not UTF-8 is not a property. If the headers exceed the bounds of an arrival (more than 256, or a
    header that is too long), the arrival has none, and therefore wakes all pulls of the queue.
    """
    tags, properties = described(headers)
    return Arrival(
        queue=Queue(topic, "", partition),
        next_offset=offset + 1,
        tags=tags,
        tags_code=None if tags is None else tags_code(tags),
        properties=properties,
        stored_ms=stored_ms if stored_ms >= 0 else None,
    )


def _arrivals_in(topic: str, frames: Frames) -> Iterator[pd.DataFrame]:
    """Convert some messages of a batch.

    Of a queue's messages with the same tag and properties, only the last one is reported, because it wakes all pulls
    that the earlier ones would wake.
    """
    newest: dict[tuple[str, str | None, str], Arrival] = {}
    for frame in frames:
        columns = (frame[name] for name in ("topic", "partition", "offset", "timestamp_ms", "headers"))
        for name, partition, offset, timestamp_ms, headers in zip(*columns, strict=True):
            named = [] if headers is None else [(header["key"], header["value"]) for header in headers]
            arrival = arrival_of(name, int(partition), int(offset), int(timestamp_ms), named)
            alike = (arrival.queue.key, arrival.tags, repr(arrival.properties))
            before = newest.get(alike)
            if before is None or before.next_offset < arrival.next_offset:
                newest[alike] = arrival
    published = [(topic, arrival.queue.key.encode(), _encode(arrival)) for arrival in newest.values()]
    if published:
        yield pd.DataFrame(published, columns=["topic", "key", "value"])
