"""The files of a Delta table that only its expired versions need, found and deleted without Spark.

A version expires when a newer one replaced it longer ago than the retention of versions. The entries of the log that
only such versions need are deleted too; a checkpoint of a later version replaces them.
"""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wakeroll_pipeline.ledger.delta_files import is_delta, open_delta
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place
from wakeroll_pipeline.storage.small_files import FoundFile

_HOUR_MS = 3_600_000
_OF_VERSION = re.compile(r"\.?(\d{20})\.(.+)")
"""Name of a file of a log that belongs to a version; also Hadoop's checksum of such a file, and unfinished files of
Spark."""
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\..*parquet")
_MOST_WITHOUT_CHECKPOINT = 20


class Expired(NamedTuple):
    """The files that only expired versions of a table need."""

    rows: Sequence[FoundFile] = ()
    """Files of rows."""
    log: Sequence[FoundFile] = ()
    """Files of the log."""

    @property
    def files(self) -> Sequence[FoundFile]:
        """All files in the order of their deletion: the log entries of versions before the files of their rows."""
        return (*self.log, *self.rows)


def expired_of(folder: Place, keep_versions_ms: int, now_ms: int) -> Expired:
    """Return the files that only the expired versions of a table need; none if there is no table.

    Args:
        folder: folder of the table.
        keep_versions_ms: time that a version stays readable after the next one (ms); for files of rows, it is rounded
            up to whole hours, so that an active writer has this long to commit the files that it has written. 0: only
            the newest version is kept, independently of clocks.
        now_ms: this machine's time (epoch ms).

    Raises:
        DeltaError: the log of the table is damaged.
        StorageFailed: the store did not answer.
    """
    if not is_delta(folder):
        return Expired()
    delta = open_delta(folder)
    found = small_files.files(folder)
    hours = -(-keep_versions_ms // _HOUR_MS)
    unneeded = {
        folder / name for name in delta.vacuum(hours, dry_run=True, enforce_retention_duration=False, full=True)
    }
    # Hadoop writes a checksum beside each file of a local folder.
    unneeded |= {place.with_name(f".{place.name}.crc") for place in unneeded}
    rows = [one for one in found if one.place in unneeded]
    entries = [one for one in found if one.place.parent == folder / "_delta_log"]
    return Expired(rows, _expired_entries(entries, now_ms - keep_versions_ms if keep_versions_ms else None))


def delete_expired(
    folder: Place, keep_versions_ms: int, now_ms: int, most_without_checkpoint: int = _MOST_WITHOUT_CHECKPOINT
) -> Expired:
    """Delete the files that only the expired versions of a table need, and return them.

    It commits nothing, so it is safe while others write or read the table, and during another call: a reader of a
    version that is not expired finds all its files.

    Args:
        folder: folder of the table.
        keep_versions_ms: as for `expired_of`.
        now_ms: as for `expired_of`.
        most_without_checkpoint: maximum number of commits after the newest checkpoint of the log; if there are more, a
            checkpoint is added first, because entries are deleted only up to a checkpoint.

    Raises:
        DeltaError, StorageFailed: as `expired_of`; a part may be deleted, and the next call deletes the rest.
    """
    if not is_delta(folder):
        return Expired()
    delta = open_delta(folder)
    newest = max(_versions(small_files.names(folder / "_delta_log"), _CHECKPOINT), default=-1)
    if delta.version() - newest > most_without_checkpoint:
        delta.create_checkpoint()
    expired = expired_of(folder, keep_versions_ms, now_ms)
    for one in expired.files:
        small_files.delete(one.place)
    return expired


def _expired_entries(entries: Sequence[FoundFile], before_ms: int | None) -> list[FoundFile]:
    """Return the files of a log that no version needs that was the newest at a moment or later.

    Args:
        entries: files of the log.
        before_ms: the moment (epoch ms); None: only the newest version is needed. The present time would not do,
            because the newest commit may be of this millisecond, or of a store whose clock is ahead.
    """
    commits = {
        int(found[1]): one.modified_ms
        for one in entries
        if (found := _OF_VERSION.fullmatch(one.place.name)) is not None and found[2] == "json"
    }
    newest = max(commits, default=-1)
    later = (version for version, at_ms in commits.items() if before_ms is not None and at_ms >= before_ms)
    needed = min((version - 1 for version in later), default=newest)
    checkpoints = _versions((one.place.name for one in entries), _CHECKPOINT)
    begin = max((version for version in checkpoints if version <= needed), default=-1)
    old = [
        one for one in entries if (found := _OF_VERSION.fullmatch(one.place.name)) is not None and int(found[1]) < begin
    ]
    return sorted(old, key=lambda one: one.place.name)  # the oldest first: what is left has no gap after a crash


def _versions(names: Iterable[str], kind: re.Pattern[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := kind.fullmatch(name)) is not None]
