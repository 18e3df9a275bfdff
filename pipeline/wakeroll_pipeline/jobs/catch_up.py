"""Batches planned by their size in bytes, because Spark's Kafka source limits only their number of records.

A batch of 200,000 records may need a few MiB of heap, or more than there is: one record may have 8 MiB. While the
waiting records are too large, a query runs single batches, each with as many records as fit.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate

from confluent_kafka import KafkaError, Message, TopicPartition
from msgspec import structs
from pyspark.sql.streaming.query import StreamingQuery

from wakeroll.connection import Connection
from wakeroll.errors import NotReachable
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.jobs.supervise import raise_if_dead
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster
from wakeroll_pipeline.recovery.checkpoint_state import forget_plan, last_batch
from wakeroll_pipeline.recovery.initial_state import Log, name_of
from wakeroll_pipeline.recovery.log_gaps import ahead_of
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.run")

BATCH_BYTES = 64 * 1024 * 1024
"""Limit for the keys and values of a batch. Several copies of them are in the heap, which has 1 GiB."""
_ONE_BATCH_MS = 3_600_000
"""Batch interval while single batches run: the first batch starts at once, and the query is stopped before the next."""
_POLL_S = 0.1
_AT_ONCE = 1_000


def catch_up(
    settings: Settings,
    query: str,
    topics: Iterable[str],
    start: Callable[[Settings], StreamingQuery],
    waits: Callable[[], object] = lambda: None,
) -> None:
    """Run a query in single batches until all records that wait for it fit into one batch.

    Args:
        settings: settings of the deployment.
        query: name of the query.
        topics: topics that the query reads.
        start: starts the query with the given settings.
        waits: called repeatedly during a batch, which may take minutes.

    Raises:
        JobFailed: the query ended by itself.
        NotReachable: no broker answered.
    """
    places = [(topic, partition) for topic in topics for partition in range(settings.partitions)]
    checkpoint = settings.checkpoint(query)
    while (most := records_that_fit(settings, query, places)) < settings.max_offsets_per_batch:
        log.info("%s catches up with large records; the next batch has %d records", query, most)
        one = structs.replace(
            settings, max_offsets_per_batch=most, batch_interval_ms=_ONE_BATCH_MS, record_interval_ms=_ONE_BATCH_MS
        )
        before = last_batch(checkpoint)
        running = start(one)
        while last_batch(checkpoint) == before:
            raise_if_dead(running)
            waits()
            time.sleep(_POLL_S)
        running.stop()


def records_that_fit(settings: Settings, query: str, places: Iterable[ControlPartition]) -> int:
    """Return how many records the next batch of a query may have; discard a planned batch that is too large.

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
    """Return the offsets at which a query continues, and the offsets of its logs."""
    ahead = ahead_of(settings, query)
    if ahead is not None:
        return {
            place: max(offset, ahead.logs[place].first) for place, offset in ahead.progress.next.items()
        }, ahead.logs
    logs = {place: Log(*offsets) for place, offsets in Cluster(settings.connection).all_offsets(places).items()}
    return {place: its.first for place, its in logs.items()}, logs


def _shares(waiting: Mapping[ControlPartition, int], most: int) -> dict[ControlPartition, int]:
    """Return how many records of each partition Spark takes: in proportion to the waiting records, at least one."""
    total = sum(waiting.values())
    return {place: min(count, -(-most * count // total)) for place, count in waiting.items()}


def _fits(sizes: Mapping[ControlPartition, list[int]], shares: Mapping[ControlPartition, int]) -> bool:
    """Return whether a batch of these shares is small enough; records that were not read count as too large."""
    if any(len(sizes[place]) < share for place, share in shares.items()):
        return False
    return sum(sizes[place][share - 1] for place, share in shares.items()) <= BATCH_BYTES


def _sizes(
    connection: Connection, ranges: Mapping[ControlPartition, tuple[int, int]]
) -> dict[ControlPartition, list[int]]:
    """Read records; return for each partition the total bytes of its first n records, for each n.

    Args:
        connection: the broker.
        ranges: partition -> first offset, and offset after the last. Reading stops after `BATCH_BYTES`.

    Raises:
        NotReachable: no record arrives in time.
    """
    found: dict[ControlPartition, list[int]] = {place: [] for place in ranges}
    bytes_of = dict.fromkeys(ranges, 0)
    left = set(ranges)
    settings = {"enable.partition.eof": True, "log_level": 0, "queued.max.messages.kbytes": BATCH_BYTES // 1024}
    consumer = connection.consumer(**settings)
    received_s = time.monotonic()
    try:
        consumer.assign([TopicPartition(*place, begin) for place, (begin, _) in ranges.items()])
        while left:
            for message in consumer.consume(_AT_ONCE, _POLL_S):
                place, reached, size = _read(message)
                if place not in left or reached is None:
                    continue
                received_s = time.monotonic()
                begin, end = ranges[place]
                # An offset may have no record (transaction markers); Spark counts offsets.
                found[place] += [0] * (min(reached, end) - begin - len(found[place]))
                if size is not None and reached < end:
                    found[place].append(size)
                    bytes_of[place] += size
                if len(found[place]) == end - begin or bytes_of[place] > BATCH_BYTES:
                    left.discard(place)
                    consumer.pause([TopicPartition(*place)])
            if time.monotonic() - received_s > PATIENCE_S:
                raise NotReachable(f"cannot read {name_of(min(left))} at {connection.bootstrap}")
    finally:
        consumer.close()
    return {place: list(accumulate(sizes)) for place, sizes in found.items()}


def _read(message: Message) -> tuple[ControlPartition, int | None, int | None]:
    """Return a message's partition, offset and size. At the end of a log, the size is None."""
    topic, partition, error = message.topic(), message.partition(), message.error()
    assert topic is not None, "a message has a topic"
    assert partition is not None, "a message has a partition"
    if error is None:
        return (topic, partition), message.offset(), len(message.key() or b"") + len(message.value() or b"")
    return (topic, partition), message.offset() if error.code() == KafkaError._PARTITION_EOF else None, None
