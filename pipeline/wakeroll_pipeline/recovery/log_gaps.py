"""Gaps in the log: records that Kafka deleted before a query read them, and how the query continues.

Kafka deletes old records whether they were read or not. No query skips records silently: a shard begins a new era from
its current state, and records that are missing in the tables are reported in the log.
"""

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import SparkSession

from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import ControlPartition
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.recovery.checkpoint_state import Progress, has_batches, progress_of, read_states, set_aside
from wakeroll_pipeline.recovery.decided_eras import decided_so_far, has_decided
from wakeroll_pipeline.recovery.initial_state import (
    Left,
    Log,
    Plan,
    Restore,
    adopt,
    adopted_file,
    name_of,
    new_era,
    place_of,
    plan,
    prepare,
    read_restore,
)
from wakeroll_pipeline.runtime.deciding_queries import query_of, topics_of
from wakeroll_pipeline.settings import CHECKPOINTS, Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

log = logging.getLogger("wakeroll.run")

_EARLIEST = -2
"""The first offset of a partition, for Spark's Kafka source."""


class Ahead(NamedTuple):
    """The offsets at which a query continues, and the offsets that Kafka has."""

    progress: Progress
    logs: Mapping[ControlPartition, Log]

    @property
    def cut(self) -> list[ControlPartition]:
        """Partitions in which Kafka deleted records before the query read them, sorted."""
        return sorted(place for place, its in self.logs.items() if self.progress.next[place] < its.first)

    @property
    def shortened(self) -> list[ControlPartition]:
        """Partitions whose log ends before the query's progress, or did so at the query's last batch; sorted."""
        return sorted(place for place in self.logs if self.reached(place) > self.end(place))

    def reached(self, place: ControlPartition) -> int:
        """Return the end of the offsets that the query has read or planned to read in a partition."""
        return max(self.progress.next[place], self.progress.planned.get(place, 0))

    def end(self, place: ControlPartition) -> int:
        """Return the end of a partition's log, or its end when the query planned its last batch, if that is lower.

        A log that lost records grows again. But a batch that was planned in between may have an end before its begin,
        and then Spark rejects it at each start.
        """
        end = self.logs[place].end
        return min(end, self.progress.planned.get(place, end))

    def gone(self, place: ControlPartition) -> str:
        """Describe the deleted records of a partition."""
        return f"{name_of(place)}: Kafka deleted records {self.progress.next[place]} to {self.logs[place].first - 1}"


def ahead_of(settings: Settings, query: str) -> Ahead | None:
    """Return the offsets at which a query continues; None if it has no checkpoint and starts at the log's beginning.

    Raises:
        InvalidUsage: the initial states of the checkpoint have another version.
        NotReachable: no broker answered.
    """
    progress = progress_of(settings.checkpoint(query))
    if progress is None:
        begun = read_restore(settings, query).shards
        if not begun:
            return None
        offsets = {place_of(name): beginning.offset for name, beginning in begun.items()}
        progress = Progress(offsets, offsets)
    logs = Cluster(settings.connection).all_offsets(progress.next)
    return Ahead(progress, {place: Log(*offsets) for place, offsets in logs.items()})


def refuse_shortened(settings: Settings, query: str) -> None:
    """Reject a log that ends before the query's progress: the query would wait there and decide nothing.

    Raises:
        InvalidUsage: the log ends too early; the message names the remedy.
        NotReachable: no broker answered.
    """
    ahead = ahead_of(settings, query)
    if ahead is None or not ahead.shortened:
        return
    place, *others = ahead.shortened
    more = f" (and {len(others)} more partitions)" if others else ""
    end = ahead.end(place)
    ends = "ends" if end == ahead.logs[place].end else "ended"
    raise InvalidUsage(
        f"{name_of(place)}{more} {ends} at {end}, but {settings.checkpoint(query)} has read up to "
        f"{ahead.reached(place)}: the brokers have lost records, or the topic was deleted and created again, or this "
        "is another cluster; if it is the right one, `wakeroll restore` lets the next run continue, in a new era"
    )


def refuse_to_forget(settings: Settings) -> None:
    """Reject an empty checkpoint if decisions exist: ids of decisions would be used twice, and all members be evicted.

    Raises:
        InvalidUsage: the checkpoint is empty, decisions exist, and `wakeroll restore` was not run.
        NotReachable: no broker answered.
    """
    adopt(settings)
    checkpoint = settings.checkpoint(query_of(settings))
    # A planned batch is repeated as planned, so it counts as progress.
    if progress_of(checkpoint) is None and not small_files.exists(adopted_file(settings)) and has_decided(settings):
        former = Place.of(CHECKPOINTS) / checkpoint.name
        moved = settings.checkpoints_folder != former.parent and not settings.checkpoints and small_files.exists(former)
        hint = f"if its checkpoint is {former}, set --checkpoints {CHECKPOINTS}; " if moved else ""
        raise InvalidUsage(
            f"{checkpoint} is empty, but {settings.connection.topics.decisions} has decisions of its shards; {hint}if "
            "the checkpoint was lost, or another query made them, run `wakeroll restore` first; for a new deployment "
            "choose another --prefix"
        )


def resume_deciding(spark: SparkSession, settings: Settings) -> list[Plan]:
    """Prepare the deciding query to continue after Kafka deleted records that it had not read; otherwise do nothing.

    The shards of those partitions begin a new era from the state in the checkpoint; the others continue.

    Returns:
        The plans of the shards that begin a new era.

    Raises:
        InvalidUsage: the initial states of the checkpoint have another version.
        NotReachable: no broker answered.
    """
    query = query_of(settings)
    ahead = ahead_of(settings, query)
    if ahead is None or not ahead.cut:
        return []
    lefts = left_in_checkpoint(spark, settings, ahead)
    so_far = decided_so_far(settings)
    era = new_era([*so_far.eras.values(), *(left.era for left in lefts.values())])
    begun = read_restore(settings)
    plans: list[Plan] = []
    shards = {}
    for place, left in lefts.items():
        if left.body is None and place not in ahead.cut:
            shards[name_of(place)] = begun.beginning(*place)
            continue
        planned = plan(place, left, ahead.logs[place], used=0, era=era)
        shards[name_of(place)] = planned.beginning
        if planned.is_new_era:
            plans.append(planned)
    for place in ahead.cut:
        log.warning("%s before the coordinator read them", ahead.gone(place))
    prepare(settings, Restore(shards))
    set_aside(settings.checkpoint(query))
    adopt(settings)
    for planned in plans:
        log.warning("%s", planned.text)
    return plans


def left_in_checkpoint(spark: SparkSession, settings: Settings, ahead: Ahead) -> dict[ControlPartition, Left]:
    """Return the state of each shard of the deciding query in the checkpoint, or else its initial state.

    Raises:
        InvalidUsage: the states have another version.
    """
    states = {}
    if has_batches(settings):
        states = {(shard.topic, shard.partition): (shard, body) for shard, body in read_states(spark, settings)}
    begun, found = read_restore(settings), {}
    for topic in topics_of(settings):
        for partition in range(settings.partitions):
            place = (topic, partition)
            begin, reached = ahead.progress.next[place], ahead.reached(place)
            if place in states:
                shard, body = states[place]
                # An uncommitted batch may have published decisions; a new era must not decide about its records again.
                decided = reached if reached > begin else 0
                found[place] = Left(begin, shard.era, "the checkpoint", body, decided)
            else:
                its = begun.beginning(topic, partition)
                found[place] = Left(begin, its.era, "its last restore", its.body, its.quiet_until)
    return found


def resume_recording(settings: Settings, query: str, before: str = "") -> str:
    """Prepare the recording query to continue after Kafka deleted records that it had not written, and log these.

    Args:
        settings: settings of the deployment.
        query: name of the checkpoint.
        before: name of the checkpoint whose committed batches a new checkpoint continues; by default, the same. Rows of
            a batch that was not committed there may be in the tables; they are dropped, as after a crash.

    Returns:
        The offsets to start at if there is no checkpoint, for Spark's Kafka source.

    Raises:
        InvalidUsage: the initial states of the checkpoint have another version.
        NotReachable: no broker answered.
    """
    follows = before or query
    ahead = ahead_of(settings, follows)
    if ahead is None or (follows == query and not ahead.cut):
        return "earliest"
    starts: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(ahead.progress.next.items()):
        starts.setdefault(topic, {})[str(partition)] = max(offset, ahead.logs[topic, partition].first)
    for its in starts.values():
        for partition in range(settings.partitions):  # a partition that was added since is read from its start
            its.setdefault(str(partition), _EARLIEST)
    for place in ahead.cut:
        log.warning("%s before they were recorded: they are missing in the tables", ahead.gone(place))
    if follows == query:
        set_aside(settings.checkpoint(query))
    return json.dumps(starts)
