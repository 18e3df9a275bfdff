"""Probes of a store: whether it supports conditional creation of objects, and whether this process may write.

If two processes write the same file of a checkpoint or of a table's log, the store must refuse the second one. A store
that ignores the condition (the header ``If-None-Match``) would silently replace the file of the first one.
"""

import uuid

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place

_PROBE = ".wakeroll-probe-"


def refuse_unconditional(folder: Place) -> None:
    """Reject a remote folder whose store ignores conditions of writes; a small object is created and deleted.

    Raises:
        InvalidUsage: the store replaced an object although it exists.
        StorageFailed: the store did not answer, or refused to write.
    """
    if folder.is_local:
        return
    probe = folder / f"{_PROBE}{uuid.uuid4().hex}"
    small_files.write(probe, b"first")
    try:
        if small_files.create(probe, b"second"):
            raise InvalidUsage(
                f"the store of {folder} ignores If-None-Match, so two processes could replace each other's files; use "
                "a store with conditional writes: docs/storage.md"
            )
    finally:
        small_files.delete(probe)


def refuse_read_only(folder: Place) -> None:
    """Reject a folder in which this process may not write; a small file is created and deleted.

    Raises:
        StorageFailed: the store did not answer, or refused to write.
    """
    probe = folder / f"{_PROBE}{uuid.uuid4().hex}"
    small_files.write(probe, b"probe")
    small_files.delete(probe)
