"""Small files in an object store, by the client `obstore`: see `wakeroll_pipeline.storage.small_files`."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import from_url

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.s3_access import S3Access
from wakeroll_pipeline.storage.small_files import StorageDenied, StorageFailed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_RETRY_S = 30
"""Time for which a request is retried while the store fails or does not answer (s)."""
_COPIES = 16
"""Number of objects that are copied at the same time."""
_DELETED_FIRST = ("commits", "offsets")
"""Folders of a checkpoint in the order of their deletion; the other files follow."""


def store_of(place: Place) -> "ObjectStore":
    """Return the client of a place's bucket; objects are named by `Place.key`.

    Raises:
        InvalidUsage: there is no client for this kind of store.
    """
    return _store(place.scheme, place.bucket, place.s3)


def read(place: Place) -> bytes | None:
    """Return the content of an object."""
    with _as_storage_errors("read", place):
        try:
            return bytes(obstore.get(store_of(place), place.key).bytes())
        except FileNotFoundError as error:
            _refuse_no_bucket(error)
            return None


def write(place: Place, body: bytes) -> None:
    """Write an object; replace the one that exists."""
    with _as_storage_errors("write", place):
        obstore.put(store_of(place), place.key, body)


def create(place: Place, body: bytes) -> bool:
    """Write an object if there is none."""
    with _as_storage_errors("write", place):
        try:
            obstore.put(store_of(place), place.key, body, mode="create")
        except AlreadyExistsError:
            return False
        return True


def exists(place: Place) -> bool:
    """Return whether there is an object of this name, or objects in this folder."""
    with _as_storage_errors("read", place):
        store = store_of(place)
        for some in obstore.list(store, prefix=place.key + "/", chunk_size=1):
            if some:
                return True
        try:
            obstore.head(store, place.key)
        except FileNotFoundError as error:
            _refuse_no_bucket(error)
            return False
        return True


def names(folder: Place) -> list[str]:
    """Return the names of the objects and folders in a folder, sorted."""
    with _as_storage_errors("read", folder):
        found = obstore.list_with_delimiter(store_of(folder), prefix=folder.key + "/")
        paths = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
    return sorted({path.rstrip("/").rpartition("/")[2] for path in paths} - {folder.name})


def files(folder: Place) -> Iterator[tuple[Place, int, int]]:
    """Yield each object in a folder: its place, its size (bytes), and the time of its last change (epoch ms)."""
    with _as_storage_errors("read", folder):
        for some in obstore.list(store_of(folder), prefix=folder.key + "/"):
            for meta in some:
                modified_ms = int(meta["last_modified"].timestamp() * 1_000)
                yield folder.in_bucket(meta["path"]), meta["size"], modified_ms


def delete(place: Place) -> None:
    """Delete an object, if it exists."""
    with _as_storage_errors("delete", place):
        _delete(store_of(place), [place.key])


def delete_folder(folder: Place) -> None:
    """Delete all objects in a folder, except Hadoop's marks of folders, which this client does not list."""
    with _as_storage_errors("delete", folder):
        store = store_of(folder)
        _delete(store, _keys(store, folder))


def move_folder(folder: Place, to: Place) -> None:
    """Copy all objects of a folder, then delete them: `commits` first, the last batch before the others."""
    with _as_storage_errors("move", folder):
        store = store_of(folder)
        keys = list(_keys(store, folder))
        begin = len(folder.key)

        def copy(key: str) -> None:
            try:
                obstore.copy(store, key, to.key + key[begin:])
            except FileNotFoundError as error:
                # Hadoop's mark of a folder, an object with a slash at the end, which the client leaves out.
                _refuse_no_bucket(error)

        with ThreadPoolExecutor(_COPIES) as threads:
            list(threads.map(copy, keys))
        for part in _DELETED_FIRST:
            beginning = f"{folder.key}/{part}/"
            for key in sorted((key for key in keys if key.startswith(beginning)), key=_batch_of, reverse=True):
                _delete(store, [key])
        _delete(store, keys)


def _keys(store: "ObjectStore", folder: Place) -> Iterator[str]:
    for some in obstore.list(store, prefix=folder.key + "/"):
        yield from (meta["path"] for meta in some)


def _batch_of(key: str) -> tuple[int, str]:
    name = key.rpartition("/")[2]
    return int(name) if name.isdigit() else -1, key


def _delete(store: "ObjectStore", keys: Iterable[str]) -> None:
    if paths := list(keys):
        try:
            obstore.delete(store, paths)
        except FileNotFoundError as error:
            _refuse_no_bucket(error)


@lru_cache(maxsize=8)
def _store(scheme: str, bucket: str, s3: S3Access) -> "ObjectStore":
    is_s3 = scheme == "s3a"
    retry = {"max_retries": 1_000, "retry_timeout": timedelta(seconds=_RETRY_S)}
    url = f"{'s3' if is_s3 else scheme}://{bucket}"
    options = s3.options(bucket) if is_s3 else {}
    client = {"allow_http": options.pop("aws_allow_http", "false") == "true"}
    try:
        return from_url(url, config=options or None, client_options=client, retry_config=retry)  # type: ignore[call-overload, no-any-return]
    except (BaseError, ValueError) as error:
        raise InvalidUsage(
            f"wakeroll cannot use {url}: {_reason(error)}; it reads checkpoints and tables in local folders, s3a://, "
            "gs:// and abfss://"
        ) from None


@contextmanager
def _as_storage_errors(what: str, place: Place) -> Iterator[None]:
    """Convert an error of the client to a sentence.

    Raises:
        StorageFailed: the block failed.
    """
    try:
        yield
    except (BaseError, OSError) as error:
        raise failure_of(what, place, error) from error


def failure_of(what: str, place: Place, error: Exception) -> StorageFailed:
    """Return the sentence for an error of the client."""
    kind = StorageDenied if isinstance(error, PermissionDeniedError | UnauthenticatedError) else StorageFailed
    small_files.errors["denied" if kind is StorageDenied else "failed"] += 1
    return kind(
        f"cannot {what} {place}: {_reason(error)}; check the bucket, s3_endpoint, s3_region and the credentials"
    )


def _refuse_no_bucket(error: Exception) -> None:
    """Raise the error of a missing bucket, which looks like that of a missing object."""
    if "NoSuchBucket" in str(error):
        raise error


def _reason(error: Exception) -> str:
    """Return the first line of an error, without the client's notes for its developers."""
    return str(error).partition("\n")[0].strip().rstrip(".:")[:300]
