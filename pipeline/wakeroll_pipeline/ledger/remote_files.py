"""Parquet files in an object store, for DuckDB: it reads the ranges of a file that a query needs.

DuckDB's own extension for S3 would be downloaded at the first query. This file system uses the client that reads
wakeroll's small files too, so endpoint and credentials are the same.
"""

from datetime import UTC, datetime
from typing import Any

import obstore
from duckdb import DuckDBPyConnection
from fsspec import AbstractFileSystem  # type: ignore[import-untyped]
from obstore.exceptions import BaseError

from wakeroll_pipeline.ledger.delta_files import REMOTE, split_name
from wakeroll_pipeline.storage.object_files import failure_of, store_of
from wakeroll_pipeline.storage.place import Place

_WRITTEN = datetime(2000, 1, 1, tzinfo=UTC)
"""Time of the last change, for DuckDB: a file of a Delta table never changes."""


def register(connection: DuckDBPyConnection, folder: Place) -> None:
    """Let a connection and its cursors read the files of a bucket, by the names of `delta_files.files_of`.

    Raises:
        InvalidUsage: there is no client for this kind of store.
    """
    if not connection.filesystem_is_registered(REMOTE):
        connection.register_filesystem(RemoteFiles(folder))
        # Otherwise each of 25 views reads the end of each file again: 120 requests for `groups` and 12 files, not 32.
        connection.execute("set global parquet_metadata_cache = true")


class RemoteFiles(AbstractFileSystem):  # type: ignore[misc]
    """The files of the tables in one bucket, as a file system of a DuckDB connection."""

    protocol = REMOTE
    cachable = False

    def __init__(self, folder: Place) -> None:
        """Read from the bucket of a folder.

        Raises:
            InvalidUsage: there is no client for this kind of store.
        """
        super().__init__()
        self._folder = folder
        self._store = store_of(folder)

    def glob(self, path: str, **_options: Any) -> list[str]:
        """Return the path itself: the Delta log names each file, and a name is never a pattern."""
        return [path]

    def info(self, path: str, **_options: Any) -> dict[str, Any]:
        """Return the size of a file, which is part of its name; no request is needed."""
        return {"name": path, "size": split_name(path)[0], "type": "file"}

    def modified(self, path: str) -> datetime:  # noqa: ARG002 - the interface of fsspec
        """Return the same time for each file."""
        return _WRITTEN

    def open(self, path: str, mode: str = "rb", **_options: Any) -> "_OpenFile":
        """Open a file; its content is requested by ranges."""
        assert mode == "rb", "DuckDB only reads the ledger"
        return _OpenFile(self, path)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return a part of a file.

        Raises:
            StorageFailed: the store did not answer, or does not have the file any more.
        """
        try:
            return bytes(obstore.get_range(self._store, key, start=start, length=length))
        except (BaseError, OSError) as error:
            raise failure_of("read", self._folder.in_bucket(key), error) from error


class _OpenFile:
    """A file that DuckDB has opened, as a binary file of Python."""

    def __init__(self, files: RemoteFiles, path: str) -> None:
        self._files = files
        self.path = path
        self.size, self._key = split_name(path)
        self._at = 0

    def read(self, length: int = -1) -> bytes:
        left = self.size - self._at
        length = left if length < 0 else min(length, left)
        if length <= 0:
            return b""
        found = self._files.read_range(self._key, self._at, length)
        self._at += len(found)
        return found

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self.size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        """Do nothing: no connection is open between two reads."""
