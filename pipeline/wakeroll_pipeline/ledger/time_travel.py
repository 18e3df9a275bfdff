"""Delta versions of the tables at a moment in the past."""

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.ledger.batches import versions_of_batch
from wakeroll_pipeline.ledger.duck_ledger import commits_of, whole_versions
from wakeroll_pipeline.storage.place import Folder


def versions_when(warehouse: Folder, version: tuple[str, int] | None, at_ms: int | None) -> dict[str, int] | None:
    """Return table -> Delta version, for a version of one table or for a moment; None: the newest of each.

    Each batch of the recorder is in all of its tables, or in none.

    Raises:
        InvalidUsage: as in `versions_with` and `versions_at`.
    """
    if version is not None:
        return versions_with(warehouse, *version)
    return None if at_ms is None else whole_versions(warehouse, versions_at(warehouse, at_ms))


def versions_at(warehouse: Folder, at_ms: int) -> dict[str, int]:
    """Return table -> its newest version at a moment (epoch ms, by the clock of the process that wrote it).

    An optional table that did not exist yet is left out.

    Raises:
        InvalidUsage: a table did not exist yet, or that version is deleted; the message names the oldest version.
    """
    found: dict[str, int] = {}
    for name, table in TABLES.items():
        its = commits_of(warehouse, name)
        before = [version for version, committed_ms in its.items() if committed_ms <= at_ms]
        if not before and table.is_optional and (not its or 0 in its):
            continue  # it was created later: it had no rows
        if not before:
            oldest = EpochMs(its[min(its)])
            raise InvalidUsage(
                f"table {name!r} has no version of {EpochMs(at_ms)}; the oldest kept version is of {oldest}"
            )
        found[name] = max(before)
    return found


def versions_with(warehouse: Folder, table: str, version: int) -> dict[str, int]:
    """Return table -> version: the requested one of this table, and the versions of the others with the same batches.

    Tables to which no batch appends, such as `snapshots`, have their versions of the time of that commit; all tables,
    if an earlier release has committed it.

    Raises:
        InvalidUsage: the table has no such version; the message names the existing ones.
    """
    its = commits_of(warehouse, table)
    if version not in its:
        raise InvalidUsage(f"table {table!r} has no version {version}; it has {min(its)} to {max(its)}")
    # All commits of a batch precede the next version of this table.
    ends_ms = its.get(version + 1, its[max(its)] + _LAST_BATCH_MS)
    by_time = versions_at(warehouse, ends_ms - 1)
    return by_time | (versions_of_batch(warehouse, whole_versions(warehouse), table, version) or {table: version})


_LAST_BATCH_MS = 60_000
"""Upper bound (ms) of the time between the commits of one batch."""
