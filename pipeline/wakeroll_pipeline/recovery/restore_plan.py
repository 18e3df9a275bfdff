"""The plan of `wakeroll restore` for the next `run`, after a loss of checkpoints or of brokers' records."""

from collections.abc import Mapping, Set
from contextlib import ExitStack
from typing import NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from wakeroll.errors import InvalidUsage
from wakeroll_model.partitioner import ControlPartition, partition_of
from wakeroll_model.records import shard_of
from wakeroll_model.rows import DECISIONS
from wakeroll_model.shard import Shard
from wakeroll_model.shard_state import WrongPartitions
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.delta_files import is_delta
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.recovery.checkpoint_state import has_batches, latest_recording, set_aside
from wakeroll_pipeline.recovery.decided_eras import SoFar, decided_so_far
from wakeroll_pipeline.recovery.initial_state import Left, Log, Plan, name_of, new_era, plan, prepare, restore_of
from wakeroll_pipeline.recovery.log_gaps import Ahead, ahead_of, left_in_checkpoint
from wakeroll_pipeline.recovery.log_marks import forget_marks, marks_of, replaced
from wakeroll_pipeline.recovery.lost_tables import restore_tables
from wakeroll_pipeline.recovery.snapshots import newest_number, newest_snapshots
from wakeroll_pipeline.recovery.write_turn import begin_recording_again
from wakeroll_pipeline.runtime.deciding_queries import COORDINATE, partitions_of, query_of
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings

_OTHER_NUMBER = (
    "set `partitions` to the number that the deployment has; `wakeroll reshard` raises it, before or after a restore"
)
_NOTHING = Left(0, 0, "the log", None, 0)


class Restored(NamedTuple):
    """The preparations for the next `run`."""

    plans: Mapping[ControlPartition, Plan]
    """Plan of each shard of the deciding query; empty if its checkpoint is intact."""
    notes: list[str]
    """Consequences for `record`, one sentence each."""


def prepare_restore(
    spark: SparkSession, settings: Settings, *, from_log: bool = False, from_snapshots: bool = False
) -> Restored:
    """Prepare the next `run` after tables or a checkpoint were lost, or the log ends too early or was replaced.

    Args:
        spark: a session.
        settings: settings of the deployment.
        from_log: ignore snapshots; all state that is older than the log is lost.
        from_snapshots: set the checkpoints aside first, for example those of a backup, which are older than the
            decisions.

    Raises:
        InvalidUsage: `run` can continue from the checkpoint, and none of the options is given; or a process uses it; or
            the snapshots have another version, or another number of partitions.
        NotReachable: no broker answered.
    """
    query = query_of(settings)
    with ExitStack() as stack:
        locks = stack.enter_context(process_locks(settings, [COORDINATE]))
        if from_snapshots:
            begin_recording_again(settings, stack)
            set_aside(settings.checkpoint(query))
        notes = restore_tables(settings, stack) or _restore_recording(settings, stack)
        ahead = ahead_of(settings, query) if has_batches(settings) else None
        others: frozenset[ControlPartition] = frozenset()
        if ahead is None:
            lefts = _left_in_snapshots(spark, settings, from_log=from_log)
        elif others := frozenset(ahead.shortened) | frozenset(replaced(settings.connection, marks_of(settings))):
            notes += _notes_of_replaced(ahead, others)
            lefts = {
                # Its last, uncommitted batch may have published decisions about lost records.
                place: left._replace(next=ahead.reached(place)) if place in others else left
                for place, left in left_in_checkpoint(spark, settings, ahead).items()
            }
        elif notes:
            return Restored({}, notes)
        else:
            raise InvalidUsage(f"{settings.checkpoint(query)} has a state; `wakeroll run` can continue from it")
        plans = _plans(settings, lefts, decided_so_far(settings), others)
        locks.confirm()
        prepare(settings, restore_of(plans))
        if ahead is not None:
            set_aside(settings.checkpoint(query))
        forget_marks(settings)
        return Restored(plans, notes)


def _left_in_snapshots(spark: SparkSession, settings: Settings, *, from_log: bool) -> dict[ControlPartition, Left]:
    """Return the states in the newest snapshots of each shard.

    Raises:
        InvalidUsage: the snapshots cannot be read, or groups would move to other shards.
    """
    _refuse_other_partitions(spark, settings)
    lefts = dict.fromkeys(partitions_of(settings), _NOTHING)
    if from_log:
        return lefts
    for place, row in newest_snapshots(spark, settings).items():
        try:
            Shard(*place, settings.partitions, row.body)
        except WrongPartitions as error:
            raise InvalidUsage(str(error)) from None
        source = f"the snapshot at {row.offset}" + (", which has no hash" if row.row_hash is None else "")
        lefts[place] = Left(row.offset + 1, row.era, source, row.body, 0)
    return lefts


def _refuse_other_partitions(spark: SparkSession, settings: Settings) -> None:
    """Reject another number of partitions: groups would move to shards that have no state of them.

    Raises:
        InvalidUsage: the newest snapshot was made with another number; or there is none, and the decisions about a
            group are in another partition than the one it belongs to now.
    """
    number = newest_number(spark, settings)
    if number is not None:
        if number != settings.partitions:
            raise InvalidUsage(
                f"the newest snapshot was made with {number} partitions, `partitions` is {settings.partitions}; "
                f"{_OTHER_NUMBER}"
            )
        return
    path = path_of(settings.warehouse, DECISIONS)
    if not is_delta(path):
        return
    cause = f.col("cause")
    rows = (
        spark.read.format("delta")
        .load(path.for_spark())
        .where((f.col("kind") == "membership") & (cause["topic"] == settings.connection.topics.groups))
        .select("group_id", cause["partition"].alias("partition"))
        .distinct()
        .limit(1_000)
        .collect()
    )
    for row in rows:
        expected = partition_of(row.group_id.encode(), settings.partitions)
        if row.partition != expected:
            raise InvalidUsage(
                f"the decisions about group {row.group_id!r} are in partition {row.partition}; with "
                f"{settings.partitions} partitions it belongs to {expected}; {_OTHER_NUMBER}"
            )


def _plans(
    settings: Settings, lefts: Mapping[ControlPartition, Left], so_far: SoFar, others: Set[ControlPartition]
) -> dict[ControlPartition, Plan]:
    """Return the plan of each shard; `others` are the partitions whose records differ from those in the state."""
    cluster = Cluster(settings.connection)
    logs = {place: Log(*offsets) for place, offsets in cluster.all_offsets(lefts).items()}
    lefts = {place: _completed(left, logs[place], so_far.reached(shard_of(*place))) for place, left in lefts.items()}
    # If a log does not have the state's last records, the shard continues with the records younger than the state.
    ended = {
        place: Shard(*place, settings.partitions, left.body).tick_ms + 1
        for place, left in lefts.items()
        if left.body is not None and (place in others or left.next > logs[place].end)
    }
    resume = cluster.since(ended)
    era = new_era([*so_far.eras.values(), *(left.era for left in lefts.values())])
    return {
        place: plan(
            place,
            left,
            logs[place],
            used=so_far.eras.get(shard_of(*place), 0),
            era=era,
            resume=resume.get(place),
            is_replaced=place in others,
        )
        for place, left in sorted(lefts.items())
    }


def _completed(left: Left, its: Log, reached: int) -> Left:
    """Complete the remaining state of a shard with facts about its log and its decisions.

    The previous era may have decided about every record in the log. If its decisions are about records beyond the end
    of the log, the brokers have lost records, even if the snapshot is older.
    """
    begin = max(left.next, reached) if reached > its.end else left.next
    return left._replace(next=begin, decided=its.end)


def _restore_recording(settings: Settings, stack: ExitStack) -> list[str]:
    """Restart `record` where a log ends before its progress; return notes about records that it cannot write."""
    query = latest_recording(settings)
    ahead = ahead_of(settings, query)
    if ahead is None or not ahead.shortened:
        return []
    begin_recording_again(settings, stack)
    decisions = settings.connection.topics.decisions
    return [
        f"record reads {name_of(place)} from its start and writes records that are missing in the tables"
        + (
            ""
            if place[0] == decisions
            else f"; of the new records, those below offset {ahead.reached(place)} are left out"
        )
        for place in ahead.shortened
    ]


def _notes_of_replaced(ahead: Ahead, places: Set[ControlPartition]) -> list[str]:
    """Describe the records that `record` leaves out of logs that were replaced and are longer again."""
    return [
        f"record leaves out the new records of {name_of(place)} below offset {ahead.reached(place)}: the tables have "
        "the lost ones in their place"
        for place in sorted(places - set(ahead.shortened))
    ]
