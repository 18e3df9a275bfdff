"""What a coordinator begins with when its query has no state: for each shard, a state, an era and an offset.

`wakeroll restore` makes it from snapshots, `wakeroll run` from a checkpoint that the log does not follow any more.  It
is a file beside the checkpoint until the next `run` moves it into the checkpoint's folder, where it stays: a shard
whose first record comes days later still begins as it says.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from model.partitioner import ControlPartition
from model.records import kind_of_topic
from model.shard import VERSION
from pipeline.recovery.checkpoint_state import has_batches, set_aside
from pipeline.runtime.deciding_queries import query_of
from pipeline.settings import Settings
from wakeroll.errors import InvalidUsage

FILE = "restore"


def name_of(place: ControlPartition) -> str:
    """Return how a partition is called: ``wakeroll.groups-3``."""
    return f"{place[0]}-{place[1]}"


def place_of(name: str) -> ControlPartition:
    """Return the partition that is called so."""
    topic, _, partition = name.rpartition("-")
    return topic, int(partition)


class Beginning(Struct, frozen=True, kw_only=True):
    """How a shard begins that has no state in its query's checkpoint."""

    offset: int = 0
    """The first record that it reads."""
    era: int = 1
    quiet_until: int = 0
    """In a new era, the first offset whose decisions are published."""
    body: bytes | None = None
    """The state; None: an empty one."""


class Restore(Struct, frozen=True):
    """How each shard of a query begins."""

    shards: dict[str, Beginning] = {}
    """``topic-partition`` -> its beginning; empty: the query begins with the log, in era 1."""
    version: int = VERSION
    """Of the states."""

    def beginning(self, topic: str, partition: int) -> Beginning:
        """Return how a shard begins."""
        return self.shards.get(name_of((topic, partition)), Beginning())

    def starting_offsets(self, topics: Sequence[str], partitions: int) -> str:
        """Return where to begin reading, for Spark's Kafka source."""
        if not self.shards:
            return "earliest"
        places = {
            topic: {str(number): self.beginning(topic, number).offset for number in range(partitions)}
            for topic in topics
        }
        return json.dumps(places)


class Log(NamedTuple):
    """What Kafka has of a partition."""

    first: int
    """The first offset that it has."""
    end: int
    """The offset of the next record."""


class Left(NamedTuple):
    """What is left of a shard, and where it would read on."""

    next: int
    """The first record that the state does not have."""
    era: int
    """Of the state; or, of a shard whose state was lost, of its latest decision, 0 if it has made none."""
    source: str
    """Where the state comes from, for people: ``the checkpoint``, ``the snapshot at 1234``."""
    body: bytes | None
    """The state; None: there is none."""
    decided: int
    """The first record that no earlier era can have decided anything about."""


class Plan(NamedTuple):
    """How a shard will begin, and why."""

    beginning: Beginning
    text: str
    """A sentence for people: what the shard does, and what is lost."""
    is_new_era: bool


def plan(place: ControlPartition, left: Left, log: Log, *, used: int, era: int, resume: int | None = None) -> Plan:
    """Decide how a shard begins; a new era, if the log does not follow its state, or a later era has decided.

    Args:
        place: of the shard.
        left: its state, if there is one.
        log: what Kafka has of its partition.
        used: the highest era of the shard's decisions so far.
        era: the number of a new era, above all that were ever used.
        resume: where to read on if the log ends before the state does; None: at its end.
    """
    topic, partition = place
    kind = kind_of_topic(topic)
    name = f"{kind}-{partition}"
    fresh = Beginning(offset=log.first, era=era, quiet_until=left.decided)
    if left.body is None:
        text = f"{name} begins era {era} with the log, from {log.first} on: there is no state of it; {_lost(kind, log)}"
        return Plan(fresh, text, is_new_era=True)
    if left.next < log.first:
        why = f"Kafka no longer has records {left.next} to {log.first - 1}"
        start = log.first
    elif left.next > log.end:
        start = log.end if resume is None else max(min(resume, log.end), log.first)
        why = f"the log ends at {log.end}, before the state does; it reads on at {start}"
    elif left.era < used:
        why = f"it has decided in era {used} since then"
        start = left.next
    else:
        same = Beginning(offset=left.next, era=left.era, body=left.body)
        return Plan(same, f"{name} goes on in era {left.era} from {left.source}; nothing is lost", is_new_era=False)
    lost = _LOST_IN_A_GAP if kind == "groups" else _LOST_PULLS
    begun = structs.replace(fresh, offset=start, body=left.body)
    return Plan(begun, f"{name} begins era {era} from {left.source}: {why}; {lost}", is_new_era=True)


_LOST_IN_A_GAP = (
    "members show again what they own, and what was set or committed in records that the state does not have is lost"
)
_LOST_PULLS = "pulls that waited get no answer, and time out at their clients"


def _lost(kind: str, log: Log) -> str:
    if kind != "groups":
        return _LOST_PULLS
    if log.first == 0:
        return "the log is whole, so settings and offsets are as they were; members show again what they own"
    return "members show again what they own; settings and offsets that were set before it are lost"


def new_era(eras: Iterable[int]) -> int:
    """Return the number of a new era: above all of these."""
    return max(eras, default=0) + 1


def restore_of(plans: Mapping[ControlPartition, Plan]) -> Restore:
    """Return what the query begins with."""
    return Restore({name_of(place): one.beginning for place, one in plans.items()})


def prepared_file(settings: Settings) -> Path:
    """Return the file for the next `run`: beside the checkpoint."""
    return settings.checkpoint(f"{query_of(settings)}.{FILE}")


def adopted_file(settings: Settings, query: str = "") -> Path:
    """Return the file that a query has begun with: in its checkpoint, and lost with it; of these settings' query."""
    return settings.checkpoint(query or query_of(settings)) / FILE


def prepare(settings: Settings, restore: Restore) -> None:
    """Let the next `run` begin with this."""
    file = prepared_file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.msgpack.encode(restore))
    unfinished.replace(file)


def adopt(settings: Settings) -> None:
    """Take what was prepared into the checkpoint; a checkpoint with a committed batch has no use for it."""
    prepared, adopted = prepared_file(settings), adopted_file(settings)
    if has_batches(settings):
        prepared.unlink(missing_ok=True)
    elif prepared.exists():
        set_aside(adopted.parent)  # a batch that was planned with another beginning
        adopted.parent.mkdir(parents=True)
        prepared.replace(adopted)


def read_restore(settings: Settings, query: str = "") -> Restore:
    """Return what a query has begun with; that of these settings, if none is named.

    Raises:
        InvalidUsage: another version of this program made its states.
    """
    file = adopted_file(settings, query)
    if not file.exists():
        return Restore()
    restore = msgspec.msgpack.decode(file.read_bytes(), type=Restore)
    if restore.version != VERSION:
        raise InvalidUsage(f"{file.parent} {other_version(restore.version)}")
    return restore


def other_version(found: int) -> str:
    """Say what to do about a checkpoint whose states are of another version."""
    return (
        f"has states of version {found}, this program reads version {VERSION}; run the program that made them, or "
        "delete the checkpoint and begin a new era with the log, by `wakeroll restore --from-log`"
    )
