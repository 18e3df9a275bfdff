"""Descriptors of a last will, which detect that the application has closed them and reused their numbers.

A program that becomes a daemon closes all descriptors, and a consumer may exist by then. A write to the number of such
a descriptor could then end in a file of the application.

This module is loaded by the executor too, so it imports nothing else of the SDK.
"""

import contextlib
import fcntl
import os

_FIRST = 3
"""0 to 2 are the standard streams: a process may have closed them, and print nevertheless."""


class OwnDescriptor:
    """A descriptor that can tell whether the application has closed it."""

    def __init__(self, fd: int) -> None:
        """Take ownership of a descriptor; its number may change."""
        self._fd = fd
        if fd < _FIRST:
            self._fd = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _FIRST)
            os.close(fd)
        self._file = _file_of(self._fd)

    @property
    def number(self) -> int:
        """The number.

        Raises:
            OSError: the application has closed it.
        """
        if not self.is_open:
            raise OSError("the application has closed its descriptors")
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether the number still stands for the same file."""
        return self._fd >= 0 and _file_of(self._fd) == self._file

    def close(self) -> None:
        """Close it, unless the application has; a second call does nothing."""
        if self.is_open:
            os.close(self._fd)
        self._fd = -1


def _file_of(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        about = os.fstat(fd)
        return about.st_dev, about.st_ino
    return None
