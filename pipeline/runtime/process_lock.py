"""One process at a time: a lock on a file that names who holds it, gone when that process is."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wakeroll.errors import InvalidUsage


@contextmanager
def only_one(file: Path, what: str) -> Iterator[None]:
    """Hold a file for the time of a `with`.

    Local file systems only: two writers of one checkpoint, or of one Delta table, would lose each other's work there.

    Raises:
        InvalidUsage: another process holds it; the message names `what` it is doing, and its process id.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a+", encoding="ascii") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.seek(0)
            raise InvalidUsage(
                f"another process ({held.read().strip() or 'unknown'}) {what} already; stop it first"
            ) from None
        held.seek(0)
        held.truncate()
        held.write(str(os.getpid()))
        held.flush()
        yield
