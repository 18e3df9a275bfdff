"""Initial states of shards whose query has no state: a state, an era and an offset for each shard.

`wakeroll restore` creates them from snapshots. `wakeroll run` creates them from a checkpoint whose next records were
deleted from the log. They are in a file beside the checkpoint until the next `run` moves it into the checkpoint's
folder. It stays there, because a shard's first record may come days later.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from wakeroll.errors import InvalidUsage
from wakeroll_model.feature_levels import FIRST, OFFERED, STATE_VERSIONS
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.records import kind_of_topic, shard_of
from wakeroll_model.shard_state import READABLE, VERSION, version_of
from wakeroll_pipeline.recovery.batch_files import remedy
from wakeroll_pipeline.recovery.checkpoint_state import has_batches, set_aside
from wakeroll_pipeline.runtime.deciding_queries import query_of
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

FILE = "restore"


def name_of(place: ControlPartition) -> str:
    """Return the name of a partition: ``wakeroll.groups-3``."""
    return f"{place[0]}-{place[1]}"


def place_of(name: str) -> ControlPartition:
    """Return the partition with this name."""
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


class Beginning(Struct, frozen=True, kw_only=True):
    """Initial state of a shard without a state in its query's checkpoint."""

    offset: int = 0
    """Offset of the first record that the shard reads."""
    era: int = 1
    quiet_until: int = 0
    """First offset whose decisions a new era publishes."""
    body: bytes | None = None
    """Encoded state; None for an empty state."""
    published_seq: int = 0
    """For a replica: number of the last decision of the era that another coordinator has certainly published."""
    level: int = FIRST
    """Feature level of an empty state, before the first record."""


class Restore(Struct, frozen=True):
    """Initial states of all shards of a query."""

    shards: dict[str, Beginning] = {}
    """``topic-partition`` -> initial state; empty if the query starts at the beginning of the log, in era 1."""
    version: int = VERSION
    """Highest version of the encoded states."""

    @classmethod
    def of(cls, shards: dict[str, Beginning]) -> "Restore":
        """Collect initial states. Until a level is raised, the previous release can read them too."""
        found = (STATE_VERSIONS[one.level] if one.body is None else version_of(one.body) for one in shards.values())
        return cls(shards, max(found, default=VERSION))

    def beginning(self, topic: str, partition: int) -> Beginning:
        """Return the initial state of a shard."""
        return self.shards.get(name_of((topic, partition)), Beginning())

    def starting_offsets(self, topics: Sequence[str], partitions: int) -> str:
        """Return the offsets to start reading at, for Spark's Kafka source."""
        if not self.shards:
            return "earliest"
        places = {
            topic: {str(number): self.beginning(topic, number).offset for number in range(partitions)}
            for topic in topics
        }
        return json.dumps(places)


class Log(NamedTuple):
    """The range of offsets that Kafka has of a partition."""

    first: int
    """First offset that still exists."""
    end: int
    """The offset of the next record."""


class Left(NamedTuple):
    """The remaining state of a shard, and the offset at which it would continue."""

    next: int
    """Offset of the first record that is not in the state."""
    era: int
    """Era of the state; if the state was lost, era of the latest decision, or 0 if there is none."""
    source: str
    """Source of the state, in words: ``the checkpoint``, ``the snapshot at 1234``."""
    body: bytes | None
    """Encoded state; None if there is none."""
    decided: int
    """Offset of the first record that cannot have caused a decision of an earlier era."""


class Plan(NamedTuple):
    """The initial state of a shard, with an explanation."""

    beginning: Beginning
    text: str
    """Sentence for the operator about the start of the shard and the losses."""
    is_new_era: bool


def plan(
    place: ControlPartition,
    left: Left,
    log: Log,
    *,
    used: int,
    era: int,
    resume: int | None = None,
    is_replaced: bool = False,
) -> Plan:
    """Choose the initial state of a shard, with a new era if the log does not continue its state or a later era exists.

    Args:
        place: partition of the shard.
        left: remaining state of the shard.
        log: offsets of its partition in Kafka.
        used: highest era of the shard's decisions so far.
        era: number of a new era, above all used ones.
        resume: offset to continue at if the log ends before the state does, or was replaced; None: the end of the log.
        is_replaced: whether the log has other records at the offsets of those in the state.
    """
    kind = kind_of_topic(place[0])
    name = shard_of(*place)
    fresh = Beginning(offset=log.first, era=era, quiet_until=left.decided)
    if left.body is None:
        if log.first > 0:  # the record that raised the level may be lost too; a level never goes down
            fresh = structs.replace(fresh, level=OFFERED)
        text = f"{name} begins era {era} with the log, from {log.first} on: no state of it exists; {_lost(kind, log)}"
        return Plan(fresh, text, is_new_era=True)
    if left.next < log.first:
        why = f"Kafka no longer has records {left.next} to {log.first - 1}"
        start = log.first
    elif left.next > log.end or is_replaced:
        start = log.end if resume is None else max(min(resume, log.end), log.first)
        found = f"ends at {log.end}, before the state does" if left.next > log.end else "has lost records of the state"
        why = f"the log {found}; it continues at {start}"
    elif left.era < used:
        why = f"it has decided in era {used} since then"
        start = left.next
    else:
        same = Beginning(offset=left.next, era=left.era, body=left.body)
        return Plan(same, f"{name} continues in era {left.era} from {left.source}; nothing is lost", is_new_era=False)
    lost = _LOST_IN_A_GAP if kind == "groups" else _LOST_PULLS
    begun = structs.replace(fresh, offset=start, body=left.body)
    return Plan(begun, f"{name} begins era {era} from {left.source}: {why}; {lost}", is_new_era=True)


_LOST_IN_A_GAP = (
    "members report again which queues they own; settings and commits in records that the state does not have are lost"
)
_LOST_PULLS = "waiting pulls get no answer, and time out at their clients"


def _lost(kind: str, log: Log) -> str:
    if kind != "groups":
        return _LOST_PULLS
    if log.first == 0:
        return "the log is complete, so settings and offsets are unchanged; members report again which queues they own"
    return "members report again which queues they own; settings and offsets from before the log's start are lost"


def new_era(eras: Iterable[int]) -> int:
    """Return the number of a new era, one above the highest of these."""
    return max(eras, default=0) + 1


def restore_of(plans: Mapping[ControlPartition, Plan]) -> Restore:
    """Return the initial states of a query."""
    return Restore.of({name_of(place): one.beginning for place, one in plans.items()})


def prepared_file(settings: Settings) -> Place:
    """Return the file with initial states for the next `run`, beside the checkpoint."""
    return settings.checkpoint(f"{query_of(settings)}.{FILE}")


def adopted_file(settings: Settings, query: str = "") -> Place:
    """Return the file with the initial states of a running query, in its checkpoint; by default, of these settings."""
    return settings.checkpoint(query or query_of(settings)) / FILE


def prepare(settings: Settings, restore: Restore) -> None:
    """Write initial states for the next `run`."""
    small_files.write(prepared_file(settings), msgspec.msgpack.encode(restore))


def adopt(settings: Settings) -> None:
    """Move prepared initial states into the checkpoint; delete them if the checkpoint has a committed batch."""
    prepared, adopted = prepared_file(settings), adopted_file(settings)
    if has_batches(settings):
        small_files.delete(prepared)
    elif (restore := small_files.read(prepared)) is not None:
        set_aside(adopted.parent)  # it may have a batch that was planned with other initial states
        small_files.write(adopted, restore)
        small_files.delete(prepared)


def read_restore(settings: Settings, query: str = "") -> Restore:
    """Return the initial states of a query; by default, of the query of these settings.

    Raises:
        InvalidUsage: another version of this program created the states, or the file is damaged.
    """
    file = adopted_file(settings, query)
    encoded = small_files.read(file)
    if encoded is None:
        return Restore()
    try:
        restore = msgspec.msgpack.decode(encoded, type=Restore)
    except msgspec.MsgspecError as error:
        raise InvalidUsage(f"{file} is empty, cut or changed ({error}); {remedy(file.parent)}") from None
    if restore.version not in READABLE:
        raise InvalidUsage(f"{file.parent} {other_version(restore.version)}")
    return restore


def other_version(found: int) -> str:
    """Return the remedy for a checkpoint whose states have another version."""
    return (
        f"has states of version {found}, but this program reads versions {READABLE[0]} to "
        f"{VERSION}; run {creator_of(found)}, "
        "or delete the checkpoint and begin a new era with the log, by `wakeroll restore --from-log`"
    )


def creator_of(found: int) -> str:
    """Describe the program that reads states of a version that this one does not read."""
    return "the newer release that created them" if found > VERSION else "the older release that created them"
