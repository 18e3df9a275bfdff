"""`wakeroll reshard`: more partitions and shards for a deployment, while no coordinator runs.

The tool adds partitions to the topics, decides the records that the old number still decides, and divides the states
among the new shards. The next `run` continues there. If the tool is interrupted, run it again: the new states take
effect only when all of them are written.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from confluent_kafka import KafkaError
from msgspec import structs
from pyspark.sql import SparkSession

from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll.login_errors import is_denied
from wakeroll_model.config import METADATA_MS
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import shard_of
from wakeroll_model.resharding import CannotSplit, check_number, split
from wakeroll_model.shard import Shard
from wakeroll_pipeline.jobs.last_records import decide_last
from wakeroll_pipeline.kafka.control_topics import InvalidTopics
from wakeroll_pipeline.kafka.log_spans import Span
from wakeroll_pipeline.kafka.topic_admin import PATIENCE_S, Cluster, Racks
from wakeroll_pipeline.ledger.tables import ensure_tables
from wakeroll_pipeline.recovery.checkpoint_state import has_batches, refuse_foreign, set_aside
from wakeroll_pipeline.recovery.decided_eras import highest_numbers
from wakeroll_pipeline.recovery.initial_state import Beginning, Restore, adopt, name_of, prepare, read_restore
from wakeroll_pipeline.recovery.log_gaps import ahead_of, left_in_checkpoint, refuse_shortened
from wakeroll_pipeline.recovery.log_marks import refuse_replaced
from wakeroll_pipeline.recovery.snapshots import replace_snapshots
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import COORDINATE, RECORD, partitions_of, query_of, topics_of
from wakeroll_pipeline.runtime.process_locks import ProcessLocks, process_locks, process_name
from wakeroll_pipeline.settings import Settings

log = logging.getLogger("wakeroll.run")

_LOOK_AGAIN_S = 0.1


class Resharded(NamedTuple):
    """A change of the number of shards."""

    positions: Mapping[ControlPartition, int]
    """Old partition -> offset of the first record that is decided with the new number."""
    published: int
    """Number of decisions about records that the coordinator had not applied when it was stopped."""


def reshard(spark: SparkSession, settings: Settings, partitions: int, metadata_ms: int = METADATA_MS) -> Resharded:
    """Raise the number of partitions of the control topics and of the decisions, and divide the states of the shards.

    Args:
        spark: a session.
        settings: settings of the deployment, with the present number of partitions.
        partitions: the new number.
        metadata_ms: longest time until a client of Kafka receives metadata of new partitions (ms).

    Raises:
        InvalidUsage: the new number is not valid; a coordinator or recorder is running; or one must run first.
        InvalidTopics: the topics cannot be changed.
        NotReachable: no broker answered.
    """
    refuse_number(settings.partitions, partitions)
    positions: dict[ControlPartition, int] = {}
    published = 0
    with ExitStack() as stack:
        of_machines = _of_machines(settings)
        locks = [
            stack.enter_context(process_locks(its, [COORDINATE] if number else [COORDINATE, RECORD]))
            for number, its in enumerate(of_machines)
        ]
        due = [its for its in of_machines if not _is_done(its, partitions)]
        for its in due:
            _refuse_unready(its)
        ensure_tables(spark, settings.warehouse, settings.keep_versions_ms)
        turn = WriteTurn(settings, locks[0].turn_lease)
        _grow(settings, partitions)
        for its in due:
            ends, count = _divide(spark, its, partitions, metadata_ms, locks)
            positions |= ends
            published += count
        for its in of_machines:
            grown = structs.replace(its, partitions=partitions)
            adopt(grown)
            if its is of_machines[-1]:
                replace_snapshots(spark, grown, turn.number)
    return Resharded(positions, published)


def refuse_number(before: int, after: int) -> None:
    """Reject a new number of partitions that is not valid.

    Raises:
        InvalidUsage: the message names the valid numbers.
    """
    try:
        check_number(before, after)
    except CannotSplit as error:
        raise InvalidUsage(str(error)) from None


def _of_machines(settings: Settings) -> list[Settings]:
    """Return the settings of each deciding query."""
    if settings.machines == "both":
        return [settings]
    return [structs.replace(settings, machines="groups"), structs.replace(settings, machines="queues")]


def _is_done(settings: Settings, partitions: int) -> bool:
    """Return whether an earlier attempt has divided the states of a query already."""
    grown = structs.replace(settings, partitions=partitions)
    if not has_batches(settings):
        adopt(settings)
    return not has_batches(settings) and len(read_restore(grown).shards) == len(partitions_of(grown))


def _refuse_unready(settings: Settings) -> None:
    """Reject a coordinator whose states do not continue with the log.

    Raises:
        InvalidUsage: the message contains the remedy.
        NotReachable: no broker answered.
    """
    query = query_of(settings)
    refuse_foreign(settings.checkpoint(query), topics_of(settings), settings.partitions)
    ahead = ahead_of(settings, query)
    if ahead is None or not has_batches(settings):
        raise InvalidUsage(
            f"{settings.checkpoint(query)} has no committed batch; start `wakeroll run`, stop it after its first "
            "batch, and run this command again"
        )
    if ahead.cut:
        raise InvalidUsage(
            f"{ahead.gone(ahead.cut[0])} before the coordinator read them; start `wakeroll run`, which begins a new "
            "era, stop it, and run this command again"
        )
    refuse_shortened(settings, query)
    refuse_replaced(settings)


def _grow(settings: Settings, partitions: int) -> None:
    """Add partitions to the topics, and wait until they have leaders.

    Raises:
        InvalidTopics: a topic has another number of partitions than before, or cannot be changed.
        NotReachable: the brokers do not answer, or do not report the new partitions in time.
    """
    topics, cluster = settings.connection.topics, Cluster(settings.connection)
    concerned = (*topics.control, topics.decisions)
    due: list[str] = []
    for topic, racks in cluster.racks(concerned).items():
        if isinstance(racks, KafkaError):
            raise InvalidTopics(f"cannot describe the topic {topic}: {racks.str()}")
        if len(racks) == settings.partitions:
            due.append(topic)
        elif len(racks) != partitions:
            raise InvalidTopics(
                f"{topic} has {len(racks)} partitions; expected {settings.partitions}, or {partitions} already"
            )
    for topic, error in (cluster.grow(due, partitions) if due else {}).items():
        if error is not None:
            needs = "; this principal needs Alter on it" if is_denied(error) else ""
            raise InvalidTopics(f"cannot add partitions to {topic}: {error.str()}{needs}")
    deadline = time.monotonic() + PATIENCE_S
    while not all(_is_led(racks, partitions) for racks in cluster.racks(concerned).values()):
        if time.monotonic() > deadline:
            raise NotReachable(f"not all partitions of {', '.join(concerned)} have a leader {PATIENCE_S:g} s later")
        time.sleep(_LOOK_AGAIN_S)


def _is_led(racks: Racks | KafkaError, partitions: int) -> bool:
    return isinstance(racks, Racks) and len(racks) == partitions and None not in racks.values()


def _divide(
    spark: SparkSession, settings: Settings, partitions: int, metadata_ms: int, locks: Sequence[ProcessLocks]
) -> tuple[dict[ControlPartition, int], int]:
    """Decide the last records of the old number, and divide the states; return the positions, and a count."""
    query = query_of(settings)
    ahead = ahead_of(settings, query)
    assert ahead is not None, "the query has committed a batch"
    lefts = left_in_checkpoint(spark, settings, ahead)
    ends = {place: end for place, (_, end) in Cluster(settings.connection).all_offsets(lefts).items()}
    spans = {place: Span(left.next, ends[place]) for place, left in lefts.items()}
    keys = settings.read_keys()
    shards = {
        place: Shard(*place, settings.partitions, left.body, era=left.era, quiet_until=left.decided, signatures=keys)
        for place, left in lefts.items()
    }
    published = decide_last(settings.connection, shards, spans, settings.partitions, process_name(settings.replica))
    _refuse_other_deciders(settings, shards)
    beginnings: dict[str, Beginning] = {}
    for (topic, partition), shard in sorted(shards.items()):
        try:
            parts = split(
                topic, partition, shard.body(), partitions, offset=ends[topic, partition], metadata_ms=metadata_ms
            )
        except CannotSplit as error:
            raise InvalidUsage(
                f"{shard_of(topic, partition)} cannot be divided: {error}; start `wakeroll run` first"
            ) from None
        for number, body in parts.items():
            offset = ends[topic, partition] if number == partition else 0
            beginnings[name_of((topic, number))] = Beginning(offset=offset, era=shard.era, body=body)
    for its in locks:
        its.confirm()
    prepare(settings, Restore.of(beginnings))
    set_aside(settings.checkpoint(query))
    return ends, published


def _refuse_other_deciders(settings: Settings, shards: Mapping[ControlPartition, Shard]) -> None:
    """Reject the change if another coordinator has decided beyond the last record of the old number.

    Raises:
        InvalidUsage: a replica is running.
    """
    numbers = highest_numbers(settings)
    for shard in shards.values():
        if numbers.get(shard.name, (0, 0)) > (shard.era, shard.seq):
            raise InvalidUsage(
                f"another coordinator has decided about {shard.name} in the meantime: stop all coordinators, and run "
                "this command again"
            )
