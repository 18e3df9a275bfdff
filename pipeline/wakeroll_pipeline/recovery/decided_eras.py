"""The progress of shards according to the record of their decisions: eras, and offsets of the decided events."""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import Message

from wakeroll.connection import Connection
from wakeroll_model.decision_order import ERA_SQL, SHARD_SQL
from wakeroll_model.rows import DECISIONS
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.ledger import Row, Value
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.runtime.deciding_queries import machines_of
from wakeroll_pipeline.settings import Settings

_NEWEST = 1_000
"""Number of the newest records of a partition that are searched for the newest decision of each shard."""
# The first match in a decision is its own field: texts of clients come later.
_header = re.compile(rb'"shard":"((groups|queues)-[0-9]+)\.([0-9]+)","seq":([0-9]+)').search


class Header(NamedTuple):
    """The identity of a decision in Kafka, and its place there."""

    machine: str
    shard: str
    """Shard without its era, like ``groups-3``."""
    era: int
    seq: int
    partition: int
    published_ms: int
    """Append time (epoch ms)."""


class SoFar(NamedTuple):
    """Progress of shards according to all their decisions, from any coordinator."""

    eras: Mapping[str, int]
    """Shard, like ``groups-3`` -> the highest era of its decisions."""
    offsets: Mapping[str, int]
    """Shard -> offset of the last record that caused a recorded decision of its newest era."""

    def reached(self, shard: str) -> int:
        """Return the offset after the last record that caused a recorded decision of a shard."""
        return self.offsets.get(shard, -1) + 1


def decided_so_far(settings: Settings) -> SoFar:
    """Read the progress from the tables, and from Kafka for decisions that are not in the tables yet.

    Raises:
        NotReachable: no broker answered, or the decisions could not be read.
        StorageFailed: the store of the tables did not answer.
    """
    reached: dict[str, tuple[int, int]] = {}
    since_ms: dict[int, int] = {}
    rows = recorded(
        settings,
        f"""select partition, {SHARD_SQL} as shard, {ERA_SQL} as era, max(cause."offset") as reached,
            max(published_ms) as newest_ms from decisions group by all having era is not null""",
    )
    for row in rows:
        reached[row.shard] = max((row.era, row.reached), reached.get(row.shard, (0, -1)))
        since_ms[row.partition] = max(row.newest_ms, since_ms.get(row.partition, 0))
    eras = {shard: era for shard, (era, _) in reached.items()}
    for one in headers_since(settings, since_ms):
        eras[one.shard] = max(one.era, eras.get(one.shard, 0))
    return SoFar(eras, {shard: offset for shard, (_, offset) in reached.items()})


def recorded(settings: Settings, sql: str, **values: Value) -> list[Row]:
    """Return the rows of a query of the recorded decisions, by DuckDB; none if there are no tables yet.

    Raises:
        StorageFailed: the store of the tables did not answer.
    """
    if not is_delta(path_of(settings.warehouse, DECISIONS)):
        return []
    # Most starts of `run` do not need DuckDB, which prints lines of its own at the end of a process with busy threads.
    from wakeroll_pipeline.ledger.duck_ledger import duck_ledger

    with duck_ledger(settings.warehouse) as ledger:
        return ledger.rows(sql, **values)


def has_decided(settings: Settings) -> bool:
    """Return whether there is any decision of the state machines that these settings run.

    If each machine has its own query, all decisions may be those of the other machine.

    Raises:
        NotReachable: no broker answered, or the decisions could not be read.
    """
    spans = ends_of_decisions(settings)
    if settings.machines == "both" or all(first == end for first, end in spans.values()):
        return any(end > 0 for _, end in spans.values())
    ours = machines_of(settings)
    return any(one.machine in ours for one in read_headers(settings.connection, spans))


def headers_since(settings: Settings, since_ms: Mapping[int, int]) -> Iterator[Header]:
    """Yield the headers of the decisions that were published from a time on.

    Args:
        settings: the broker and the topics.
        since_ms: partition of the decisions topic -> append time of the first decision to read, epoch ms; a missing
            partition is read from its start.

    Raises:
        NotReachable: no broker answered, or the decisions could not be read.
    """
    topic = settings.connection.topics.decisions
    found = Cluster(settings.connection).since({(topic, partition): at_ms for partition, at_ms in since_ms.items()})
    spans = {
        partition: Span(max(first, found.get((topic, partition), first)), end)
        for partition, (first, end) in ends_of_decisions(settings).items()
    }
    yield from read_headers(settings.connection, spans)


def highest_numbers(settings: Settings) -> dict[str, tuple[int, int]]:
    """Return the era and the seq of the last decision of each shard among the newest decisions in Kafka.

    Raises:
        NotReachable: no broker answered, or the decisions could not be read.
    """
    spans = {
        partition: Span(max(log.begin, log.end - _NEWEST), log.end)
        for partition, log in ends_of_decisions(settings).items()
    }
    highest: dict[str, tuple[int, int]] = {}
    for one in read_headers(settings.connection, spans):
        highest[one.shard] = max((one.era, one.seq), highest.get(one.shard, (0, 0)))
    return highest


def ends_of_decisions(settings: Settings) -> dict[int, Span]:
    """Return the range of records that Kafka has of each partition of the decisions.

    Raises:
        NotReachable: no broker answered.
    """
    topic = settings.connection.topics.decisions
    ends = Cluster(settings.connection).all_offsets((topic, partition) for partition in range(settings.partitions))
    return {partition: Span(*its) for (_, partition), its in ends.items()}


def read_headers(connection: Connection, spans: Mapping[int, Span]) -> Iterator[Header]:
    """Yield the headers of decisions; partition of the decisions topic -> the records to read.

    Raises:
        NotReachable: the decisions could not be read.
    """
    topic = connection.topics.decisions
    for message in read_spans(connection, {(topic, partition): span for partition, span in spans.items()}):
        if (header := header_of(message)) is not None:
            yield header


def header_of(message: Message) -> Header | None:
    """Return the header of a decision, without parsing the rest; None if the record is not a decision."""
    found, partition = _header(message.value() or b""), message.partition()
    if found is None or partition is None:
        return None
    shard, machine, era, seq = found.groups()
    return Header(machine.decode(), shard.decode(), int(era), int(seq), partition, message.timestamp()[1])
