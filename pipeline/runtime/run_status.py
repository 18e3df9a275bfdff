"""What a running `run` says about itself: a small file that `up`, `demo` and `doctor` read."""

import os
from pathlib import Path

import msgspec
from msgspec import Struct

FILE = "run.json"


class QueryStatus(Struct):
    """One query's last batch."""

    batch: int
    """Its number, from 0; -1 before the first."""
    records: int
    batch_ms: int


class Status(Struct):
    """A running process and its queries."""

    pid: int
    bootstrap: str
    started_ms: int
    """When its session was ready; epoch ms, by this machine's clock."""
    told_ms: int
    """When this was written; as above."""
    queries: dict[str, QueryStatus]
    failures: int = 0
    """Events that the machine itself failed at since then, rejected by the rule `internal`."""
    states: dict[str, int] = {}
    """Shard, like ``groups-3`` -> bytes of its state; those that have had a batch since then."""

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote this still runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True


def write_status(home: Path, status: Status) -> None:
    """Write the file so that a reader sees the old one or the new one, never half of it."""
    home.mkdir(parents=True, exist_ok=True)
    unfinished = home / f".{FILE}.{os.getpid()}"
    unfinished.write_bytes(msgspec.json.encode(status))
    unfinished.replace(home / FILE)


def read_status(home: Path) -> Status | None:
    """Return what the last `run` in this home wrote; None if there is nothing readable."""
    try:
        return msgspec.json.decode((home / FILE).read_bytes(), type=Status)
    except (OSError, msgspec.MsgspecError):
        return None
