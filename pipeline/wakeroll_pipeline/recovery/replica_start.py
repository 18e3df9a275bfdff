"""The start of a replica: a further coordinator, which makes the same decisions as those that already run.

A replica has a checkpoint of its own. It begins with the newest snapshots, in the era of the other coordinators, and
applies the records since. Decisions that another coordinator has certainly published are not published again. All
others are, because that coordinator may have died before it published them. Readers skip repetitions.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import shard_of
from wakeroll_model.rows import SnapshotRow
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.recovery.checkpoint_state import has_batches, has_fewer, read_states, set_aside
from wakeroll_pipeline.recovery.initial_state import (
    Beginning,
    Log,
    Restore,
    adopt,
    adopted_file,
    name_of,
    prepare,
    read_restore,
)
from wakeroll_pipeline.recovery.log_gaps import ahead_of
from wakeroll_pipeline.recovery.published_decisions import NOTHING, Reached, published_so_far
from wakeroll_pipeline.recovery.snapshots import has_snapshots, newest_snapshots
from wakeroll_pipeline.runtime.deciding_queries import partitions_of, query_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files

log = logging.getLogger("wakeroll.run")


class _Found(NamedTuple):
    """The facts from which a shard of a replica begins."""

    snapshot: SnapshotRow | None
    its_log: Log
    reached: Reached


def join(spark: SparkSession, settings: Settings) -> dict[str, int]:
    """Prepare the deciding query of a replica; do nothing if it can continue from its checkpoint.

    Returns:
        Shard, like ``groups-3`` -> the era in which this replica decides.

    Raises:
        InvalidUsage: a shard has no snapshot from which it can begin; the message contains the remedy.
        NotReachable: no broker answered.
    """
    adopt(settings)
    reached = published_so_far(settings)
    if has_fewer(settings.checkpoint(query_of(settings)), settings.partitions):
        log.warning(
            "there are more partitions now: replica %r begins again, with the newest snapshots", settings.replica
        )
    elif has_batches(settings) or small_files.exists(adopted_file(settings)):
        eras = _eras(spark, settings)
        reason = _outdated(settings, eras, reached)
        if reason is None:
            return eras
        log.warning("%s: replica %r begins again, with the newest snapshots", reason, settings.replica)
    places = partitions_of(settings)
    snapshots = newest_snapshots(spark, settings) if has_snapshots(settings) else {}
    # The ends come after the snapshots, which others append meanwhile: else a new one could be behind its log's end.
    logs = Cluster(settings.connection).all_offsets(places)
    shards = {
        name_of(place): _beginning(
            place, _Found(snapshots.get(place), Log(*logs[place]), reached.get(shard_of(*place), NOTHING))
        )
        for place in places
    }
    set_aside(settings.checkpoint(query_of(settings)))
    prepare(settings, Restore.of(shards))
    adopt(settings)
    log.info("replica %r begins with %s", settings.replica, _described(shards.values()))
    return _eras(spark, settings)


def outdated_shards(eras: Mapping[str, int], reached: Mapping[str, Reached]) -> list[str]:
    """Return the shards for which another coordinator decides in a later era, sorted.

    >>> outdated_shards({"groups-0": 1, "groups-1": 2}, {"groups-0": Reached(2, 0), "groups-1": Reached(2, 7)})
    ['groups-0']
    """
    return sorted(shard for shard, era in eras.items() if shard in reached and reached[shard].era > era)


def _eras(spark: SparkSession, settings: Settings) -> dict[str, int]:
    """Return the era of each shard in the checkpoint, or else that of its initial state."""
    restore = read_restore(settings)
    eras = {shard_of(*place): restore.beginning(*place).era for place in partitions_of(settings)}
    states = read_states(spark, settings) if has_batches(settings) else []
    return eras | {shard.name: shard.era for shard, _ in states if shard.name in eras}


def _outdated(settings: Settings, eras: Mapping[str, int], reached: Mapping[str, Reached]) -> str | None:
    """Return why a replica cannot continue from its checkpoint, in words; None if it can."""
    ahead = ahead_of(settings, query_of(settings))
    if ahead is not None and ahead.cut:
        return f"{ahead.gone(ahead.cut[0])} before this replica read them"
    if later := outdated_shards(eras, reached):
        return f"{later[0]} is in era {reached[later[0]].era} by now, this replica has era {eras[later[0]]}"
    return None


def _beginning(place: ControlPartition, found: _Found) -> Beginning:
    """Choose the initial state of a shard.

    Raises:
        InvalidUsage: there is no state of its era from which the log continues.
    """
    snapshot, its_log, reached = found
    wait = (
        "`record` takes snapshots every snapshot_interval_ms (ten minutes), the first a minute after its start: start "
        "this replica again after the next ones, with the --home of the deployment"
    )
    name = shard_of(*place)
    if snapshot is None:
        if its_log.first > 0 or reached.era > 1:
            raise InvalidUsage(
                f"there is no snapshot of {name}, and its log begins at offset {its_log.first} in era {reached.era}; "
                f"{wait}"
            )
        return Beginning(published_seq=reached.settled_seq)
    if snapshot.era < reached.era:
        raise InvalidUsage(f"{name} is in era {reached.era}, but its newest snapshot is of era {snapshot.era}; {wait}")
    begin = snapshot.offset + 1
    if begin < its_log.first:
        raise InvalidUsage(
            f"Kafka no longer has the records {begin} to {its_log.first - 1} of {name_of(place)}; {wait}"
        )
    if begin > its_log.end:
        raise InvalidUsage(
            f"{name_of(place)} ends at {its_log.end}, before the newest snapshot of {name}: the brokers have lost "
            "records; run `wakeroll restore` for one coordinator first"
        )
    settled = reached.settled_seq if reached.era == snapshot.era else 0
    return Beginning(offset=begin, era=snapshot.era, body=snapshot.body, published_seq=settled)


def _described(beginnings: Iterable[Beginning]) -> str:
    """Describe the initial states of the shards, in words."""
    of = [begun for begun in beginnings if begun.body is not None]
    eras = sorted({begun.era for begun in of}) or [1]
    return f"{len(of)} snapshots, in era {', '.join(map(str, eras))}" if of else "the beginning of the log, in era 1"
