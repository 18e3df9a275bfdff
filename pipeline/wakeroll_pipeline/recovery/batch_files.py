"""The batches of a query in Spark's checkpoint: a file with the plan of each batch, and one for its commit.

Spark does not wait until these files are on the disk. If the machine loses power, the newest ones may be empty or cut.
An incomplete file counts as not written: the query repeats the batches since, with the same results.
"""

import json
import logging
import uuid
from typing import Any, NamedTuple

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

log = logging.getLogger("wakeroll.run")

Offsets = dict[tuple[str, int], int]
"""(topic, partition) -> offset."""

PLANS, COMMITS = "offsets", "commits"
"""Folders of a checkpoint, with one file for each batch."""


class Batches(NamedTuple):
    """The batches from which a query continues."""

    committed: int
    """Number of the last committed batch, from 0; -1 if there is none."""
    planned: int
    """Number of the last planned batch, whose decisions may have been published; -1 if there is none."""


def batches_of(checkpoint: Place) -> Batches:
    """Return the last batches whose files are complete."""
    plans = numbers(checkpoint, PLANS)
    committed = -1
    for number in reversed(numbers(checkpoint, COMMITS)):
        # Spark reads the plan of the batch before too.
        needed = [one for one in (number - 1, number) if one == number or one in plans]
        if _commit_in(checkpoint, number) and all(_plan_in(checkpoint, one) is not None for one in needed):
            committed = number
            break
    later = (number for number in reversed(plans) if number > committed and _plan_in(checkpoint, number) is not None)
    return Batches(committed, next(later, committed))


def numbers(checkpoint: Place, folder: str) -> list[int]:
    """Return the numbers of the batches that have a file in a folder, complete or not, sorted."""
    return sorted(int(name) for name in small_files.names(checkpoint / folder) if name.isdigit())


def planned_offsets(checkpoint: Place, number: int) -> Offsets:
    """Return the offsets at which a planned batch ends.

    Raises:
        InvalidUsage: the file is missing, or not complete; the message names it and the remedy.
    """
    return offsets_in(checkpoint, f"{PLANS}/{number}")


def offsets_in(checkpoint: Place, name: str) -> Offsets:
    """Return the offsets in a file of a checkpoint.

    Raises:
        InvalidUsage: the file is missing, or not complete; the message names it and the remedy.
    """
    file = checkpoint.child(*name.split("/"))
    text = small_files.read(file)
    if text is None:
        raise InvalidUsage(f"{file} is missing; the checkpoint is incomplete: was a part of it deleted?")
    found = _offsets(text)
    if found is None:
        raise InvalidUsage(f"{file} {_damage(text)}; {remedy(checkpoint)}")
    return found


def planned_ms(checkpoint: Place, number: int) -> int:
    """Return when a batch was planned (epoch ms, by the clock of its machine); 0 if it is not known."""
    lines = (small_files.read(checkpoint.child(PLANS, str(number))) or b"").splitlines()
    planned = _object_in(lines[1]) if len(lines) > 2 else None
    return int((planned or {}).get("batchTimestampMs", 0))


def remedy(checkpoint: Place) -> str:
    """Return the remedy for a checkpoint with a damaged file."""
    if checkpoint.name.partition(".")[0] == RECORD:
        return (
            f"move {checkpoint} away: `record` then begins with the first records that Kafka has, and writes no row "
            "twice"
        )
    return f"move {checkpoint} away and run `wakeroll restore`: the next run then continues from the newest snapshots"


def discard_incomplete(checkpoint: Place) -> None:
    """Delete the newest files of a query if they are not complete, so that Spark repeats their batches.

    The caller has the lock of the query.

    Raises:
        InvalidUsage: no batch is complete, so the query cannot continue; the message names the files and the remedy.
    """
    committed, _ = batches_of(checkpoint)
    commits, plans = numbers(checkpoint, COMMITS), numbers(checkpoint, PLANS)
    later = [f"{COMMITS}/{number}" for number in commits if number > committed]
    later += [f"{PLANS}/{number}" for number in plans if number > committed]
    begin = ["sources/0/0"] if committed < 0 and small_files.exists(checkpoint.child("sources", "0", "0")) else []
    others = ["metadata"] if small_files.exists(checkpoint / "metadata") else []
    damaged = {name: damage for name in (*later, *begin, *others) if (damage := _damage_of(checkpoint, name))}
    if not damaged and len(later) <= 1:
        return
    found = "; ".join(f"{checkpoint}/{name} {damage}" for name, damage in damaged.items())
    if commits and committed < 0:
        raise InvalidUsage(f"{found or checkpoint}; no batch of this query is complete; {remedy(checkpoint)}")
    following = f"{PLANS}/{committed + 1}"
    kept = {following} if following in later and not damaged.keys() & {following, *begin} else set()
    log.warning(
        "%s: did the machine lose power? The query repeats its batches from %d on", found or checkpoint, committed + 1
    )
    for name in sorted({*later, *damaged} - kept - {"metadata"}):  # commits first
        delete(checkpoint, name)
    if "metadata" in damaged:  # it is only an id, which nobody else knows; but Spark requires one
        small_files.delete(checkpoint / ".metadata.crc")
        small_files.write(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())


def delete(checkpoint: Place, name: str) -> None:
    """Delete a file of a checkpoint, and its checksum."""
    *folders, last = name.split("/")
    for one in (last, f".{last}.crc"):
        small_files.delete(checkpoint.child(*folders, one))


def _damage_of(checkpoint: Place, name: str) -> str:
    """Describe the damage of a file; empty if it is complete."""
    text = small_files.read(checkpoint.child(*name.split("/"))) or b""
    return "" if _is_complete(name, text) else _damage(text)


def _is_complete(name: str, text: bytes) -> bool:
    if name.partition("/")[0] in (PLANS, "sources"):
        return _offsets(text) is not None
    return bool(text) and _object_in(text.splitlines()[-1]) is not None


def _commit_in(checkpoint: Place, number: int) -> bool:
    return _is_complete(COMMITS, small_files.read(checkpoint.child(COMMITS, str(number))) or b"")


def _plan_in(checkpoint: Place, number: int) -> Offsets | None:
    return _offsets(small_files.read(checkpoint.child(PLANS, str(number))) or b"")


def _offsets(text: bytes) -> Offsets | None:
    """Parse one of Spark's files: a version, optionally a line about the batch, and {topic: {partition: offset}}.

    None if it is not complete.
    """
    lines = text.splitlines()
    topics = _object_in(lines[-1]) if len(lines) > 1 else None
    if topics is None or not all(isinstance(offsets, dict) and offsets for offsets in topics.values()):
        return None
    try:
        return {
            (topic, int(partition)): int(at) for topic, offsets in topics.items() for partition, at in offsets.items()
        }
    except (TypeError, ValueError):
        return None  # the line about the batch


def _object_in(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _damage(text: bytes) -> str:
    if not text.strip(b"\0"):
        return "is empty"
    return f"is cut after {len(text)} bytes, or was changed"
