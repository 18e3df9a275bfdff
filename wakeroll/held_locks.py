"""Release of locks that a thread still holds after an exception."""

from contextlib import suppress
from typing import Protocol


class _Lock(Protocol):
    def release(self) -> object: ...


def free(lock: _Lock) -> None:
    """Release a reentrant lock, or a condition with one, as often as this thread holds it.

    An exception of a signal handler may come between the end of a ``with`` block and the release. Call it at a place
    where this thread must not hold the lock.
    """
    with suppress(RuntimeError):  # this thread does not hold it
        while True:
            lock.release()
