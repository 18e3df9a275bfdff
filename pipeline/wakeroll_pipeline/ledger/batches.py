"""Batches of the recorder in the logs of the tables: which versions of the tables are of one moment.

`record` commits the rows of a batch to one table after the other.  Each of these commits names its batch, and all
tables to which the batch appends.  So a reader can leave out a batch that is not in all of its tables yet.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from deltalake import DeltaTable
from msgspec import Struct

from wakeroll_model.records import UNREADABLE
from wakeroll_model.rows import RECORDED

METADATA = "wakeroll.batch"
"""Key of a batch in the metadata of a commit."""

_NEWEST = 50
"""Newest commits of a table that are read at first: behind a batch, there are those of upkeep and of new writers."""


class Batch(Struct, frozen=True, array_like=True):
    """A batch of the recorder, or a part of one."""

    number: int
    """Counts up, also across processes."""
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
    """A batch that is in some of its tables only: `record` writes it, or was ended meanwhile and will repeat it."""

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


def moment_of(tables: Mapping[str, DeltaTable]) -> Moment:
    """Return the newest moment at which each batch was in all of its tables, or in none.

    Tables of an earlier version, whose commits name no batch, are read in their newest versions.

    Args:
        tables: name -> table; tables that are not recorded are ignored.
    """
    commits = {table.name: _Newest(batch_commits(tables[table.name])) for table in RECORDED if table.name in tables}
    versions = {name: tables[name].version() for name in commits}
    unfinished: Unfinished | None = None
    while (newest := max((one.number for one in commits.values()), default=0)) > 0:
        having = [name for name, one in commits.items() if one.number == newest]
        lacking = [name for name in commits[having[0]].commit.batch.tables if name in commits and name not in having]
        if not lacking:
            break
        if unfinished is None:
            begun_ms = min(commits[name].commit.at_ms for name in having)
            unfinished = Unfinished(number=newest, begun_ms=begun_ms, tables=having, lacking=lacking)
        for name in having:
            versions[name] = commits[name].commit.version - 1
            commits[name].go_back()
    return Moment(versions=versions, unfinished=unfinished)


def batch_commits(table: DeltaTable) -> Iterator[BatchCommit]:
    """Yield the commits of batches to a table, the newest one first."""
    seen = 0
    for most in (_NEWEST, None):
        found = table.history(most)
        for commit in found[seen:]:
            try:
                batch = msgspec.json.decode(commit.get(METADATA, ""), type=Batch)
            except UNREADABLE:
                continue  # a commit of upkeep, of another program, or of an earlier version
            yield BatchCommit(version=commit["version"], at_ms=commit["timestamp"], batch=batch)
        if len(found) < _NEWEST:
            return
        seen = len(found)


def newest_number(tables: Iterable[DeltaTable]) -> int:
    """Return the highest number of a batch in some tables; 0 if there is none."""
    return max((_Newest(batch_commits(table)).number for table in tables), default=0)


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
        """Return the commit of the batch, which there must be."""
        assert self._commit is not None
        return self._commit

    def go_back(self) -> None:
        """Leave the batch out."""
        self._commit = next(self._commits, None)
