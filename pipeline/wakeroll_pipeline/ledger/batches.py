"""Batches of the recorder in the logs of the tables, by which versions of different tables belong to one moment.

`record` commits the rows of a batch to one table after the other.  Each of these commits names its batch, and all
tables to which the batch appends.  So a reader can leave out a batch that is not in all of its tables yet.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from wakeroll_model.events import UNREADABLE
from wakeroll_model.rows import RECORDED
from wakeroll_pipeline.ledger.delta_files import commits_with
from wakeroll_pipeline.storage.place import Folder, Place

METADATA = "wakeroll.batch"
"""Key of a batch in the metadata of a commit."""


class Batch(Struct, frozen=True, array_like=True):
    """A batch of the recorder, or a part of one."""

    number: int
    """Number of the batch; it increases, also across processes."""
    tables: tuple[str, ...]
    """Tables to which it appends, in the order of the commits."""

    def as_metadata(self) -> dict[str, str]:
        """Return the metadata of its commits."""
        return {METADATA: msgspec.json.encode(self).decode()}


class BatchCommit(Struct, frozen=True):
    """The commit of a batch to one table."""

    version: int
    at_ms: int
    """Time of the commit by the clock of the recorder (epoch ms)."""
    batch: Batch


class Unfinished(Struct, frozen=True):
    """A batch that is in some of its tables only: `record` is writing it, or ended meanwhile and will repeat it."""

    number: int
    begun_ms: int
    """Time of its first commit (epoch ms)."""
    tables: Sequence[str]
    """Tables that have it."""
    lacking: Sequence[str]
    """Tables that lack it."""


class Moment(Struct, frozen=True):
    """One moment of all tables."""

    versions: Mapping[str, int]
    """Recorded table -> its version at this moment."""
    unfinished: Unfinished | None
    """The newest batch, if it is not in all of its tables."""


def moment_of(warehouse: Folder, newest: Mapping[str, int]) -> Moment:
    """Return the newest moment at which each batch was in all of its tables, or in none.

    Tables of an earlier version, whose commits name no batch, are read in their newest versions. So is a table that
    lacks several batches: it will not receive them, because it was lost and created again, or replaced.

    Args:
        warehouse: folder of the tables.
        newest: table -> its newest version to use; tables that are not recorded are ignored.
    """
    place = Place.of(warehouse)
    names = [table.name for table in RECORDED if table.name in newest]
    commits = {name: _Newest(batch_commits(place / name, newest[name])) for name in names}
    versions = {name: newest[name] for name in names}
    unfinished: Unfinished | None = None
    waiting: set[str] = set()
    while (number := max((one.number for one in commits.values()), default=0)) > 0:
        having = [name for name, one in commits.items() if one.number == number]
        lacking = [name for name in commits[having[0]].commit.batch.tables if name in commits and name not in having]
        if not lacking:
            break
        without = {name for name in lacking if commits[name].number == 0}
        if lost := without & waiting:
            others = moment_of(warehouse, {name: version for name, version in newest.items() if name not in lost})
            return Moment(
                versions={**{name: newest[name] for name in lost}, **others.versions}, unfinished=others.unfinished
            )
        waiting |= without
        if unfinished is None:
            begun_ms = min(commits[name].commit.at_ms for name in having)
            unfinished = Unfinished(number=number, begun_ms=begun_ms, tables=having, lacking=lacking)
        for name in having:
            versions[name] = commits[name].commit.version - 1
            commits[name].go_back()
    return Moment(versions=versions, unfinished=unfinished)


def versions_of_batch(warehouse: Folder, newest: Mapping[str, int], table: str, version: int) -> dict[str, int] | None:
    """Return table -> its version after the batch of which a table has a version.

    Args:
        warehouse: folder of the tables.
        newest: table -> its newest version; tables that are not recorded are ignored.
        table: name of a table.
        version: one of its versions. If no batch committed it, as for a compaction, the batch before it is used.

    Returns:
        The versions of the recorded tables; None if the log of the table names no batch: it is not recorded, or an
        earlier release has written it.
    """
    place = Place.of(warehouse)
    asked = next(batch_commits(place / table, version), None)
    if asked is None:
        return None
    versions = {one.name: newest[one.name] for one in RECORDED if one.name in newest}
    for name in versions:
        for commit in batch_commits(place / name, newest[name]):
            if commit.batch.number <= asked.batch.number:
                break
            versions[name] = commit.version - 1
    return versions | {table: version}


def batch_commits(folder: Folder, version: int) -> Iterator[BatchCommit]:
    """Yield the commits of batches to a table up to a version, the newest one first."""
    for commit in commits_with(folder, version, METADATA):
        try:
            batch = msgspec.json.decode(str(commit.info[METADATA]), type=Batch)
        except UNREADABLE:  # of another program
            continue
        yield BatchCommit(version=commit.version, at_ms=commit.info.get("timestamp", 0), batch=batch)


def newest_number(warehouse: Folder, newest: Mapping[str, int]) -> int:
    """Return the highest number of a batch in some tables; 0 if there is none.

    Args:
        warehouse: folder of the tables.
        newest: table -> its newest version.
    """
    place = Place.of(warehouse)
    return max((_Newest(batch_commits(place / name, version)).number for name, version in newest.items()), default=0)


class _Newest:
    """The newest batch of a table that is not left out."""

    def __init__(self, commits: Iterator[BatchCommit]) -> None:
        self._commits = commits
        self._commit = next(commits, None)

    @property
    def number(self) -> int:
        """Return the number of the batch; 0 if there is none."""
        return 0 if self._commit is None else self._commit.batch.number

    @property
    def commit(self) -> BatchCommit:
        """Return the commit of the batch, which must exist."""
        assert self._commit is not None
        return self._commit

    def go_back(self) -> None:
        """Leave the batch out."""
        self._commit = next(self._commits, None)
