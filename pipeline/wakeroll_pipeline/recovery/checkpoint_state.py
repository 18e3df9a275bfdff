"""The coordinator's state and progress, read from its checkpoint (the state by Spark's `statestore` source)."""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from msgspec import structs
from pyspark.sql import Row, SparkSession

from wakeroll.errors import InvalidUsage
from wakeroll_model.shard import Shard
from wakeroll_pipeline.recovery.batch_files import (
    COMMITS,
    PLANS,
    batches_of,
    delete,
    numbers,
    offsets_in,
    planned_ms,
    planned_offsets,
)
from wakeroll_pipeline.recovery.packed_states import unpack
from wakeroll_pipeline.runtime.deciding_queries import COORDINATE, RECORD, queries_of, query_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.hadoop_files import delete_with_marks
from wakeroll_pipeline.storage.place import Place

ASIDE = ".set-aside"
"""Suffix of a checkpoint that was replaced by another one; it may be deleted."""


_AT_WORK_MS = 120_000
"""A coordinator whose last planned batch is older than another one's by this time has probably ended (ms)."""


class Progress(NamedTuple):
    """Progress of a query in its topics: (topic, partition) -> offset."""

    next: Mapping[tuple[str, int], int]
    """Offset of the first record after the last committed batch."""
    planned: Mapping[tuple[str, int], int]
    """The end of the last planned batch; its decisions may have been published. Equal to `next` if it was committed."""


def has_batches(settings: Settings, query: str = "") -> bool:
    """Return whether a deciding query has committed a batch; by default, the query of these settings."""
    return last_batch(settings.checkpoint(query or query_of(settings))) >= 0


def refuse_foreign(checkpoint: Place, topics: Sequence[str], partitions: int, *, may_grow: bool = False) -> None:
    """Reject a checkpoint of other topics, or of another number of partitions.

    The shard of a group depends on that number: with another number, each group would have a second coordinator without
    a state.

    Args:
        checkpoint: folder of one query; it may be missing.
        topics: topics that the query will read.
        partitions: number of partitions of each topic.
        may_grow: accept a checkpoint of fewer partitions: the query reads new ones from their start, or begins again.

    Raises:
        InvalidUsage: the checkpoint was created with other topics or partitions.
    """
    planned = batches_of(checkpoint).planned
    if planned < 0:
        return
    found = Counter(topic for topic, _ in planned_offsets(checkpoint, planned))
    expected = dict.fromkeys(topics, partitions)
    if found == expected or (may_grow and found.keys() == expected.keys() and max(found.values()) < partitions):
        return
    raise InvalidUsage(
        f"{checkpoint} is the checkpoint of {_listed(found)}; this deployment has {_listed(expected)}; "
        "set the prefix and the partitions of that checkpoint, or another --checkpoints; if the number of partitions "
        "is to grow, set `partitions` to that of the checkpoint and run `wakeroll reshard`"
    )


def has_fewer(checkpoint: Place, partitions: int) -> bool:
    """Return whether a checkpoint was made when its topics had fewer partitions."""
    planned = batches_of(checkpoint).planned
    found = planned_offsets(checkpoint, planned) if planned >= 0 else {}
    return bool(found) and max(partition for _, partition in found) + 1 < partitions


def last_batch(checkpoint: Place) -> int:
    """Return the number of a query's last committed batch, from 0; -1 before the first. Its file may be incomplete."""
    return max(numbers(checkpoint, COMMITS), default=-1)


def progress_of(checkpoint: Place) -> Progress | None:
    """Return the progress of a query; None before its first planned batch."""
    committed, planned = batches_of(checkpoint)
    if planned < 0:
        return None
    # Before the first commit, the source's own file contains the initial offsets.
    last = f"{PLANS}/{committed}" if committed >= 0 else "sources/0/0"
    if not small_files.exists(checkpoint.child(*last.split("/"))):
        return None
    return Progress(offsets_in(checkpoint, last), planned_offsets(checkpoint, planned))


def forget_plan(checkpoint: Place) -> None:
    """Discard the plan of a query's uncommitted batch; its records are read again, in batches of another size."""
    last = last_batch(checkpoint)
    for batch in numbers(checkpoint, PLANS):
        if batch > last:
            delete(checkpoint, f"{PLANS}/{batch}")


def clear_states(spark: SparkSession, checkpoint: Place) -> None:
    """Delete the states of a checkpoint without a planned batch, because Spark starts such a query only without states.

    States remain if the plan was discarded. In an object store, the marks of their folders also remain if the
    checkpoint was deleted or renamed.
    """
    if not numbers(checkpoint, PLANS):
        delete_with_marks(spark, checkpoint / "state")


def recordings(settings: Settings) -> list[str]:
    """Return the names of the possible checkpoints of `record`: ``record``, and one per turn, the latest last."""
    turns = (name for name in small_files.names(settings.checkpoints_folder) if number_of_recording(name) >= 0)
    return [RECORD, *sorted(turns, key=number_of_recording)]


def number_of_recording(name: str) -> int:
    """Return the number of the turn that has a checkpoint: 17 for ``record.17``; -1 for other names.

    Numbers of earlier releases are terms of a lease, which are lower than those of `lease_log.turn_number`.
    """
    prefix, _, number = name.partition(".")
    return int(number) if prefix == RECORD and number.isascii() and number.isdigit() else -1


def latest_recording(settings: Settings) -> str:
    """Return the name of the latest checkpoint of `record` that has planned a batch; ``record`` if there is none."""
    begun = [name for name in recordings(settings) if progress_of(settings.checkpoint(name)) is not None]
    return begun[-1] if begun else RECORD


def set_aside(checkpoint: Place) -> Place:
    """Rename a checkpoint, so that its query starts without one; return its new place, where an older one is deleted.

    If this is interrupted in an object store, the checkpoint is whole, or has no committed batch, or lacks its last
    commits. In each case, a repetition or the next `run` continues correctly.
    """
    aside = checkpoint.with_name(checkpoint.name + ASIDE)
    if small_files.exists(checkpoint):
        small_files.delete_folder(aside)
        small_files.move_folder(checkpoint, aside)
    return aside


def set_aside_recordings(settings: Settings) -> None:
    """Rename all checkpoints of `record`, so that it starts without one. With leases, each turn has its own.

    The caller has the lock of `record`.
    """
    for name in recordings(settings):
        set_aside(settings.checkpoint(name))


def _listed(topics: Mapping[str, int]) -> str:
    return ", ".join(f"{topic} ({count} partitions)" for topic, count in sorted(topics.items()))


def furthest(settings: Settings) -> Settings:
    """Return these settings for the active coordinator that has applied most of the log.

    Only coordinators with a checkpoint in the same folder are known. All of them have equal states at equal offsets. If
    there is none, the settings are returned unchanged.
    """
    found: dict[str, tuple[int, int]] = {}
    for name in sorted({settings.replica, "", *_replicas(settings)}):
        its = structs.replace(settings, replica=name)
        checkpoints = [its.checkpoint(query) for query in queries_of(its) if has_batches(its, query)]
        if checkpoints:
            reached = [progress for checkpoint in checkpoints if (progress := progress_of(checkpoint)) is not None]
            found[name] = (
                max(planned_ms(one, batches_of(one).planned) for one in checkpoints),
                sum(sum(one.next.values()) for one in reached),
            )
    latest_ms = max((planned_ms for planned_ms, _ in found.values()), default=0)
    working = {name: offsets for name, (planned_ms, offsets) in found.items() if planned_ms >= latest_ms - _AT_WORK_MS}
    return structs.replace(settings, replica=max(working, key=working.__getitem__)) if working else settings


def _replicas(settings: Settings) -> list[str]:
    """Return the names of the replicas that have a checkpoint in the folder of the checkpoints."""
    names = (name.partition("@") for name in small_files.names(settings.checkpoints_folder))
    return [name for query, _, name in names if query.startswith(COORDINATE) and name]


def read_states(spark: SparkSession, settings: Settings) -> list[tuple[Shard, bytes]]:
    """Return each shard with its encoded state. If each state machine has its own query, return the shards of both.

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    checkpoints = [settings.checkpoint(query) for query in queries_of(settings) if has_batches(settings, query)]
    if not checkpoints:
        names = " or ".join(str(settings.checkpoint(query)) for query in queries_of(settings))
        raise InvalidUsage(f"{names} has no committed batch; was `wakeroll run` started?")
    # The state stores of a session need a coordinator that Spark creates only for streaming; this call creates it.
    _ = spark.streams.active
    states = []
    for row in chain.from_iterable(_rows(spark, checkpoint) for checkpoint in checkpoints):
        body = unpack(bytes(row.value.groupState.body))
        states.append((Shard(row.key.topic, row.key.partition, settings.partitions, body), body))
    return sorted(states, key=lambda state: state[0].name)


def _rows(spark: SparkSession, checkpoint: Place) -> list[Row]:
    if not checkpoint.is_local:
        return spark.read.format("statestore").load(checkpoint.for_spark()).collect()
    with tempfile.TemporaryDirectory() as folder:
        # The source encodes spaces in a path and then does not find it.
        link = Path(folder) / "checkpoint"
        link.symlink_to(checkpoint.path)
        return spark.read.format("statestore").load(str(link)).collect()
