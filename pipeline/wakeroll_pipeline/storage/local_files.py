"""Small files in a local file system (see `wakeroll_pipeline.storage.small_files`), and files that people write."""

import os
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.storage.place import Place

_Declared = TypeVar("_Declared", bound=Struct)


def read(place: Place) -> bytes | None:
    """Return the content of a file."""
    try:
        return place.path.read_bytes()
    except FileNotFoundError:
        return None


def write(place: Place, body: bytes) -> None:
    """Write a file; replace the one that exists."""
    unfinished = _unfinished(place.path, body)
    unfinished.replace(place.path)


def create(place: Place, body: bytes) -> bool:
    """Write a file if there is none."""
    unfinished = _unfinished(place.path, body)
    try:
        os.link(unfinished, place.path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    return True


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
    """Return values that change when a file or its permissions change; empty if there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode


def toml_of(path: Path, kind: type[_Declared], what: str, verb: str = "is") -> _Declared:
    """Return the content of a TOML file that people write.

    Args:
        path: the file.
        kind: declaration of the content.
        what: the content in words, for errors.
        verb: `is` or `are`, to fit `what`.

    Raises:
        InvalidUsage: the file cannot be read, or a value is not valid; the message names it.
    """
    try:
        return msgspec.toml.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise InvalidUsage(f"cannot read {what} in {path}: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeError) as error:  # a value that is not valid, or no TOML
        raise InvalidUsage(f"{what} in {path} {verb} not valid: {error}") from None


def secret_in(path: Path, what: str) -> str:
    """Return the text of a file that only its owner, or its group, may read.

    Kubernetes gives a mounted secret to the group of the pod.

    Raises:
        InvalidUsage: it cannot be read, or every user of the machine may read it; the message has `what`.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise InvalidUsage(f"cannot read {what} {path}: {getattr(error, 'strerror', None) or error}") from None
    if mode & stat.S_IRWXO:
        raise InvalidUsage(f"every user of this machine may read {path} (mode {mode:o}); to fix this: chmod 600 {path}")
    return text


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
