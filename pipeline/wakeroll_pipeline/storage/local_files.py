"""Small files in a local file system: see `wakeroll_pipeline.storage.small_files`."""

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from wakeroll_pipeline.storage.place import Place


def read(place: Place) -> tuple[bytes, str] | None:
    """Return the content of a file, and its version."""
    try:
        body = place.path.read_bytes()
    except FileNotFoundError:
        return None
    return body, _version_of(body)


def write(place: Place, body: bytes) -> None:
    """Write a file; replace the one that exists."""
    unfinished = _unfinished(place.path, body)
    unfinished.replace(place.path)


def create(place: Place, body: bytes) -> str | None:
    """Write a file if there is none."""
    unfinished = _unfinished(place.path, body)
    try:
        os.link(unfinished, place.path)
    except FileExistsError:
        return None
    finally:
        unfinished.unlink()
    return _version_of(body)


def replace(place: Place, body: bytes, version: str) -> str | None:
    """Write a file if it still has a version; a lock beside it keeps other writers away meanwhile."""
    path = place.path
    if not path.exists():
        return None
    with path.with_name(f".{path.name}.lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = read(place)
        if found is None or found[1] != version:
            return None
        write(place, body)
    return _version_of(body)


def exists(place: Place) -> bool:
    """Return whether there is a file, or a folder."""
    return place.path.exists()


def names(folder: Place) -> list[str]:
    """Return the names in a folder, sorted."""
    try:
        return sorted(path.name for path in folder.path.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def files(folder: Place) -> Iterator[tuple[Place, int, int]]:
    """Yield each file in a folder: its place, its size (bytes), and the time of its last change (epoch ms)."""
    for where, _, its in os.walk(folder.path):
        for name in its:
            path = Path(where) / name
            try:
                found = path.lstat()
            except FileNotFoundError:  # another process has deleted it meanwhile
                continue
            yield folder / path.relative_to(folder.path).as_posix(), found.st_size, found.st_mtime_ns // 1_000_000


def delete(place: Place) -> None:
    """Delete a file, if it exists."""
    place.path.unlink(missing_ok=True)


def delete_folder(folder: Place) -> None:
    """Delete a folder, if it exists."""
    shutil.rmtree(folder.path, ignore_errors=True)


def move_folder(folder: Place, to: Place) -> None:
    """Rename a folder, if it exists."""
    if folder.path.exists():
        folder.path.rename(to.path)


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return what changes when a file does, or its rights; empty if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def _unfinished(path: Path, body: bytes) -> Path:
    """Return a new file with a content, in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())  # or a power failure could leave the renamed file empty
    except OSError:
        unfinished.unlink(missing_ok=True)  # the disk is full
        raise
    return unfinished


def _version_of(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=16).hexdigest()
