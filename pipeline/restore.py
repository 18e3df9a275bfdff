"""What a coordinator without a checkpoint starts from: a file that `wakeroll restore` wrote for the next `run`."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.machines import query_of
from pipeline.settings import Settings

_EARLIEST = -2
"""What Spark's Kafka source calls the first record that is still there."""


class ShardSnapshot(Struct, frozen=True):
    """A shard's state at an offset."""

    offset: int
    body: bytes


class Restore(Struct, frozen=True):
    """Where each shard begins when it has no state: at its snapshot, else at the start of the log in a new era."""

    era: int = 1
    """For shards without a snapshot: above every era that has decided anything."""
    snapshots: dict[str, ShardSnapshot] = {}
    """``topic-partition`` -> its newest snapshot."""
    ends: dict[str, int] = {}
    """``topic-partition`` -> the end of the log when this was written: what a new era decides about records before it
    was decided before, and is not published again."""

    def body_of(self, topic: str, partition: int) -> bytes | None:
        """Return the state that a shard starts from; None for an empty one."""
        snapshot = self.snapshots.get(f"{topic}-{partition}")
        return None if snapshot is None else snapshot.body

    def quiet_until(self, topic: str, partition: int) -> int:
        """Return the first offset whose decisions are published."""
        name = f"{topic}-{partition}"
        return 0 if name in self.snapshots else self.ends.get(name, 0)

    def starting_offsets(self, topics: Sequence[str], partitions: int) -> str:
        """Return where to begin reading, for Spark's Kafka source."""
        if not self.snapshots:
            return "earliest"
        return json.dumps(
            {
                topic: {
                    str(partition): snapshot.offset + 1
                    if (snapshot := self.snapshots.get(f"{topic}-{partition}"))
                    else _EARLIEST
                    for partition in range(partitions)
                }
                for topic in topics
            }
        )


def restore_file(settings: Settings) -> Path:
    """Return where the file is: beside the checkpoint that it stands in for."""
    return settings.checkpoint(f"{query_of(settings)}.restore")


def read_restore(settings: Settings) -> Restore:
    """Return what `wakeroll restore` prepared; an empty one if it was not asked."""
    file = restore_file(settings)
    return msgspec.msgpack.decode(file.read_bytes(), type=Restore) if file.exists() else Restore()


def write_restore(settings: Settings, restore: Restore) -> None:
    """Prepare the next `run`."""
    file = restore_file(settings)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.msgpack.encode(restore))
    unfinished.replace(file)
