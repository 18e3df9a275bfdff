"""The status file of `run`: a small file that `up`, `demo` and `doctor` read."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, field

from wakeroll_model import feature_levels

FILE = "run.json"
"""Name of the file; that of a replica contains its name: ``run@b.json``."""


class QueryStatus(Struct):
    """The last batch of one query."""

    batch: int
    """Number of the batch, from 0; -1 before the first."""
    records: int
    batch_ms: int


class Status(Struct):
    """A running process and its queries."""

    pid: int
    bootstrap: str
    started_ms: int
    """Time at which the Spark session was ready; epoch ms, by this machine's clock."""
    written_ms: int = field(name="told_ms")
    """Time at which this status was written; epoch ms, by this machine's clock."""
    queries: dict[str, QueryStatus]
    failures: int = 0
    """Number of events since the start for which the state machine itself failed; they are rejected with the rule
    `internal`."""
    states: dict[str, int] = {}
    """Shard, like ``groups-3`` -> bytes of its state; only shards that had a batch since the start."""
    marks: dict[str, tuple[int, int]] = {}
    """``topic-partition`` -> offset and log time (epoch ms) of the last record that its shard has applied."""
    shard_levels: dict[str, int] = {}
    """Shard -> its feature level; only shards that had a batch since the start."""
    newest_level: int = feature_levels.FIRST
    """Newest feature level that the process supports; a process of release 0.1 does not write it."""
    fingerprints: list[str] = []
    """Fingerprints of the keys in the process's key file."""
    decides: bool = True
    """Whether the process runs the state machines; False for `run --only record`."""

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote this status still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write_status(folder: Path, status: Status, replica: str = "") -> None:
    """Replace the file in a work folder atomically, so that a reader never sees a partial one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{FILE}.{os.getpid()}"
    try:
        unfinished.write_bytes(msgspec.json.encode(status))
        unfinished.replace(folder / _name(replica))
    finally:
        unfinished.unlink(missing_ok=True)  # if the disk is full, each start would leave one


def read_status(folder: Path, replica: str | None = None) -> Status | None:
    """Return the status that the last `run` wrote in a work folder; None if there is none or it is not readable.

    Args:
        folder: the work folder.
        replica: name of the coordinator, empty for the only one; None: the coordinator that wrote last.
    """
    files = (folder / FILE, *folder.glob("run@*.json")) if replica is None else (folder / _name(replica),)
    found = [status for file in files if (status := _read(file)) is not None]
    return max(found, key=lambda status: status.written_ms, default=None)


def running(folder: Path) -> dict[str, Status]:
    """Return the running coordinators of a work folder: name of the replica, empty for the only one -> its status."""
    files = {"": folder / FILE} | {file.stem.partition("@")[2]: file for file in sorted(folder.glob("run@*.json"))}
    found = {name: status for name, file in files.items() if (status := _read(file)) is not None}
    return {name: status for name, status in found.items() if status.is_alive and status.decides}


def name_of(replica: str, status: Status) -> str:
    """Return the name of a coordinator of a work folder for people; `replica` is empty for the only one."""
    name = f"the replica {replica!r}" if replica else "`wakeroll run`"
    return f"{name} (process {status.pid})"


def _name(replica: str) -> str:
    """Return the name of the status file of a coordinator."""
    return FILE.replace(".", f"@{replica}.") if replica else FILE


def _read(file: Path) -> Status | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None
