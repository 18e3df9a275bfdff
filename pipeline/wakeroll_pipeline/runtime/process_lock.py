"""A lock for one process at a time: a locked file with the holder's process id, released when the process ends."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wakeroll.errors import InvalidUsage


class Locked(InvalidUsage):
    """Another process holds a lock.

    Attributes:
        holder: process id of that process; ``unknown`` if it was not written yet.
    """

    def __init__(self, holder: str, what: str) -> None:
        super().__init__(f"another process ({holder}) already {what}; stop it first")
        self.holder = holder


@contextmanager
def only_one(file: Path, what: str) -> Iterator[None]:
    """Hold the lock on a file during a `with` block.

    It works on local file systems only. Two writers of one checkpoint or one Delta table would destroy each other's
    data.

    Raises:
        Locked: another process holds the lock; the message contains `what` that process does, and its process id.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="ascii") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            raise Locked(held.read().strip() or "unknown", what) from None
        held.seek(0)
        held.truncate()
        held.write(str(os.getpid()))
        held.flush()
        yield
