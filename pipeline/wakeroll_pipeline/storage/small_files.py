"""Small files beside the checkpoints, which wakeroll itself reads and writes, in any place.

A write is atomic: a reader finds the old file or the new one. A remote place needs the package `obstore` (extra `s3`),
which is imported when it is needed.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from wakeroll.errors import InvalidUsage, WakerollError
from wakeroll_pipeline.storage import local_files
from wakeroll_pipeline.storage.place import Place

errors: Counter[str] = Counter()
"""Failed requests of this process to object stores, by their kind: ``denied`` or ``failed``; for its metrics."""


class StorageFailed(WakerollError):
    """A store did not answer, or refused a request; the message names the place and the reason. A retry may help."""


class StorageDenied(StorageFailed):
    """A store denies this process an operation, or rejects its credentials. A retry does not help."""


class FoundFile(NamedTuple):
    """A file in a folder."""

    place: Place
    size: int
    """Size of the file (bytes)."""
    modified_ms: int
    """Time of its last change by the clock of the store (epoch ms)."""


class _Files(Protocol):
    """The operations of one kind of store; see the functions below."""

    def read(self, place: Place) -> bytes | None: ...
    def write(self, place: Place, body: bytes) -> None: ...
    def create(self, place: Place, body: bytes) -> bool: ...
    def exists(self, place: Place) -> bool: ...
    def names(self, folder: Place) -> list[str]: ...
    def files(self, folder: Place) -> Iterable[tuple[Place, int, int]]: ...
    def delete(self, place: Place) -> None: ...
    def delete_folder(self, folder: Place) -> None: ...
    def move_folder(self, folder: Place, to: Place) -> None: ...


def read(place: Place) -> bytes | None:
    """Return the content of a file; None if there is none.

    Raises:
        StorageFailed: the store did not answer.
    """
    return _files_of(place).read(place)


def write(place: Place, body: bytes) -> None:
    """Write a file; replace the one that exists.

    Raises:
        StorageFailed: the store did not accept it.
    """
    _files_of(place).write(place, body)


def create(place: Place, body: bytes) -> bool:
    """Write a file if there is none; of several writers, only one succeeds.

    A store that answers late may have accepted the request: after False, a writer that can recognize its own content
    reads the file.

    Returns:
        Whether it was written; False if there is a file already.

    Raises:
        StorageFailed: the store did not answer; whether the file was written is unknown.
    """
    return _files_of(place).create(place, body)


def exists(place: Place) -> bool:
    """Return whether there is a file, or a folder with a file in it.

    Raises:
        StorageFailed: the store did not answer.
    """
    return _files_of(place).exists(place)


def names(folder: Place) -> list[str]:
    """Return the names of the files and folders in a folder, sorted; none if the folder is missing.

    Raises:
        StorageFailed: the store did not answer.
    """
    return _files_of(folder).names(folder)


def files(folder: Place) -> list[FoundFile]:
    """Return the files in a folder and in the folders in it; none if the folder is missing.

    Raises:
        StorageFailed: the store did not answer.
    """
    return [FoundFile(*found) for found in _files_of(folder).files(folder)]


def delete(place: Place) -> None:
    """Delete a file, if it exists.

    Raises:
        StorageFailed: the store did not answer.
    """
    _files_of(place).delete(place)


def delete_folder(folder: Place) -> None:
    """Delete a folder and all that is in it, if it exists.

    Raises:
        StorageFailed: the store did not answer; a part of it may be gone.
    """
    _files_of(folder).delete_folder(folder)


def move_folder(folder: Place, to: Place) -> None:
    """Rename a folder to one that does not exist; do nothing if the folder does not exist.

    In an object store, it is copied first and then deleted, `commits` before the rest. So a checkpoint whose move was
    interrupted is either whole, or has no committed batch.

    Raises:
        StorageFailed: the store did not answer.
    """
    _files_of(folder).move_folder(folder, to)


def _files_of(place: Place) -> _Files:
    """Return the operations of the store of a place.

    Raises:
        InvalidUsage: the package for this kind of store is not installed, or the kind is not supported.
    """
    if place.is_local:
        return local_files
    try:
        from wakeroll_pipeline.storage import object_files
    except ModuleNotFoundError as error:
        raise InvalidUsage(
            f"{place} needs the extra `s3` ({error.name} is missing); install it with: pip install 'wakeroll[s3]'"
        ) from None
    return object_files
