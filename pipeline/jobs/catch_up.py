"""Catching up with large records: batches that are planned by their bytes; Spark's Kafka source only counts records.

A batch of 200,000 records takes some MiB of heap, or more than there is: one record may have 8 MiB.  While what waits
does not fit, a query runs for one batch at a time, each with as many records as do.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from confluent_kafka import KafkaError, Message, TopicPartition
from msgspec import structs
from pyspark.sql.streaming.query import StreamingQuery

from model.partitioner import ControlPartition
from pipeline.jobs.supervise import raise_if_dead
from pipeline.kafka.topic_admin import PATIENCE_S, Cluster
from pipeline.recovery.checkpoint_state import forget_plan, last_batch
from pipeline.recovery.initial_state import Log, name_of
from pipeline.recovery.log_gaps import ahead_of
from pipeline.settings import Settings
from wakeroll.connection import Connection
from wakeroll.errors import NotReachable

log = logging.getLogger("wakeroll.run")

BATCH_BYTES = 64 * 1024 * 1024
"""Of keys and values in a batch.  Copies of it are in the heap, of which there is 1 GiB, several times."""
_ONE_BATCH_MS = 3_600_000
"""A query's first batch begins at once, and the next one so much later: until then it has been stopped."""
_POLL_S = 0.1
_AT_ONCE = 1_000


def catch_up(
    settings: Settings, query: str, topics: Iterable[str], start: Callable[[Settings], StreamingQuery]
) -> None:
    """Run a query by single batches until what waits for it fits into one.

    Args:
        settings: of the deployment.
        query: its name.
        topics: that it reads.
        start: starts it with other settings than these.

    Raises:
        JobFailed: the query ended by itself.
        NotReachable: no broker answered.
    """
    places = [(topic, partition) for topic in topics for partition in range(settings.partitions)]
    checkpoint = settings.checkpoint(query)
    while (most := records_that_fit(settings, query, places)) < settings.max_offsets_per_batch:
        log.info("%s catches up with large records, by a batch of %d", query, most)
        one = structs.replace(
            settings, max_offsets_per_batch=most, batch_interval_ms=_ONE_BATCH_MS, record_interval_ms=_ONE_BATCH_MS
        )
        before = last_batch(checkpoint)
        running = start(one)
        while last_batch(checkpoint) == before:
            raise_if_dead(running)
            time.sleep(_POLL_S)
        running.stop()


def records_that_fit(settings: Settings, query: str, places: Iterable[ControlPartition]) -> int:
    """Return how many records the next batch of a query may have; a planned batch that is too large is planned anew.

    Raises:
        NotReachable: no broker answered.
    """
    begin, logs = _next(settings, query, places)
    waiting = {place: logs[place].end - offset for place, offset in begin.items() if offset < logs[place].end}
    if not waiting:
        return settings.max_offsets_per_batch
    shares = _shares(waiting, settings.max_offsets_per_batch)
    sizes = _sizes(
        settings.connection, {place: (begin[place], begin[place] + share) for place, share in shares.items()}
    )
    most = settings.max_offsets_per_batch
    while most > 1 and not _fits(sizes, _shares(waiting, most)):
        most //= 2
    if most < settings.max_offsets_per_batch:
        forget_plan(settings.checkpoint(query))
    return most


def _next(
    settings: Settings, query: str, places: Iterable[ControlPartition]
) -> tuple[dict[ControlPartition, int], Mapping[ControlPartition, Log]]:
    """Return where a query reads on, and its logs."""
    ahead = ahead_of(settings, query)
    if ahead is not None:
        return {
            place: max(offset, ahead.logs[place].first) for place, offset in ahead.progress.next.items()
        }, ahead.logs
    logs = {place: Log(*offsets) for place, offsets in Cluster(settings.connection).offsets(places).items()}
    return {place: its.first for place, its in logs.items()}, logs


def _shares(waiting: Mapping[ControlPartition, int], most: int) -> dict[ControlPartition, int]:
    """Return how many records of each partition Spark takes: in proportion to what waits there, at least one."""
    total = sum(waiting.values())
    return {place: min(count, -(-most * count // total)) for place, count in waiting.items()}


def _fits(sizes: Mapping[ControlPartition, list[int]], shares: Mapping[ControlPartition, int]) -> bool:
    """Say whether a batch of these shares is small enough; of what was not read, nothing fits."""
    if any(len(sizes[place]) < share for place, share in shares.items()):
        return False
    return sum(sizes[place][share - 1] for place, share in shares.items()) <= BATCH_BYTES


def _sizes(
    connection: Connection, ranges: Mapping[ControlPartition, tuple[int, int]]
) -> dict[ControlPartition, list[int]]:
    """Read records; return the bytes that the first n of each partition have together, for each n.

    Args:
        connection: the broker.
        ranges: partition -> the first offset, and the one behind the last.  What is behind `BATCH_BYTES` is not read.

    Raises:
        NotReachable: nothing comes any more.
    """
    found: dict[ControlPartition, list[int]] = {place: [] for place in ranges}
    bytes_of = dict.fromkeys(ranges, 0)
    left = set(ranges)
    settings = {"enable.partition.eof": True, "log_level": 0, "queued.max.messages.kbytes": BATCH_BYTES // 1024}
    consumer = connection.consumer(**settings)
    heard_s = time.monotonic()
    try:
        consumer.assign([TopicPartition(*place, begin) for place, (begin, _) in ranges.items()])
        while left:
            for message in consumer.consume(_AT_ONCE, _POLL_S):
                place, reached, size = _read(message)
                if place not in left or reached is None:
                    continue
                heard_s = time.monotonic()
                begin, end = ranges[place]
                # An offset may be without a record, as those of transactions are; Spark counts offsets.
                found[place] += [0] * (min(reached, end) - begin - len(found[place]))
                if size is not None and reached < end:
                    found[place].append(size)
                    bytes_of[place] += size
                if len(found[place]) == end - begin or bytes_of[place] > BATCH_BYTES:
                    left.discard(place)
                    consumer.pause([TopicPartition(*place)])
            if time.monotonic() - heard_s > PATIENCE_S:
                raise NotReachable(f"{name_of(min(left))} could not be read at {connection.bootstrap}")
    finally:
        consumer.close()
    return {place: list(accumulate(sizes)) for place, sizes in found.items()}


def _read(message: Message) -> tuple[ControlPartition, int | None, int | None]:
    """Return where a message stands: its place, offset and size; at the end of a log without a size."""
    topic, partition, error = message.topic(), message.partition(), message.error()
    assert topic is not None, "a message is of a topic"
    assert partition is not None, "a message is of a partition"
    if error is None:
        return (topic, partition), message.offset(), len(message.key() or b"") + len(message.value() or b"")
    return (topic, partition), message.offset() if error.code() == KafkaError._PARTITION_EOF else None, None
