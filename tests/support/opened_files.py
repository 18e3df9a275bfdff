"""The files that this process and others open in some folders, as Linux reports them (inotify)."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_OPEN = 0x20
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


@contextmanager
def opened_files(folder: Path, suffix: str = ".parquet") -> Iterator[set[Path]]:
    """Provide a set that has, at the end of the block, the files in the folders of a folder that were opened in it.

    Args:
        folder: the folders in it are watched, as far as they exist at the begin.
        suffix: of the names that count.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert descriptor >= 0, os.strerror(ctypes.get_errno())
    found: set[Path] = set()
    try:
        watched = {
            libc.inotify_add_watch(descriptor, os.fsencode(one), _IN_OPEN): one
            for one in folder.iterdir()
            if one.is_dir()
        }
        assert min(watched) > 0, os.strerror(ctypes.get_errno())
        yield found
        for number, name in _events(descriptor):
            assert number in watched, "more files were opened than the kernel could report"
            found.add(watched[number] / name)
        found -= {one for one in found if one.suffix != suffix}
    finally:
        os.close(descriptor)


def _events(descriptor: int) -> Iterator[tuple[int, str]]:
    """Yield the watch and the name of each event that waits."""
    while True:
        try:
            read = os.read(descriptor, _BUFFER)
        except BlockingIOError:
            return
        place = 0
        while place < len(read):
            number, _mask, _cookie, length = _EVENT.unpack_from(read, place)
            place += _EVENT.size
            yield number, os.fsdecode(read[place : place + length].rstrip(b"\0"))
            place += length
