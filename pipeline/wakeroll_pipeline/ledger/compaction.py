"""Compaction: the small files of a table are merged into larger ones, whose rows are sorted.

The sink appends a file per batch. Compaction replaces consecutive files by one file that has the same rows. The commit
is one of Delta's OPTIMIZE: files are removed and added, and no data changes.
"""

import json
from collections.abc import Sequence

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable

from wakeroll_model.rows import Table
from wakeroll_pipeline.ledger.file_rewrites import MOST_IN_MEMORY, DataFile, Rewrite, data_files
from wakeroll_pipeline.storage.place import Place


def compact(folder: Place, table: Table) -> bool:
    """Merge some small files of a table into a larger one, in one commit.

    The files are consecutive by the time of their rows, after the newest full file. A crash leaves at most one file
    without a version; `clean` deletes it.

    Args:
        folder: folder of the table; no other process compacts it or deletes its rows meanwhile.
        table: declaration of the table.

    Returns:
        Whether files are left for the next call. Files that are appended meanwhile wait for the next round. Otherwise a
        table that always grows would be merged all the time, and no other table ever.

    Raises:
        NotRewritten: another program has enabled a feature of Delta for the table that compaction does not support, or
            has committed at the same time; or a file of the table is missing or damaged.
        DeltaError: the log of the table is damaged.
        StorageFailed, OSError: the store did not answer, or a file cannot be written.
    """
    rewrite = Rewrite(folder, table)
    small = small_files_of(rewrite.delta, table)
    while len(small) > 1:
        number, rows = _first_rows(rewrite, small)
        if number > 1:
            rewrite.remove(small[:number])
            rewrite.add(rows, is_full=number < len(small))
            sorted_by = json.dumps(list(table.layout))
            rewrite.commit("OPTIMIZE", {"predicate": "[]", "zOrderBy": "[]", "sortedBy": sorted_by}, changes_data=False)
            return number < len(small)
        small = small[1:]
    return False


def small_files_of(delta: DeltaTable, table: Table) -> Sequence[DataFile]:
    """Return the files that `compact` would merge, if there is more than one: those after the newest full one."""
    files = data_files(delta, table)
    return files[max((number for number, file in enumerate(files, 1) if file.is_full), default=0) :]


def _first_rows(rewrite: Rewrite, files: Sequence[DataFile]) -> tuple[int, pa.Table]:
    """Return the number of files whose rows fill one file, and these rows."""
    parts: list[pa.Table] = []
    size = 0
    for file in files:
        if size >= MOST_IN_MEMORY:
            break
        part = rewrite.rows_in(file)
        parts.append(part)
        size += part.nbytes
    # Arrow would do this again for each row group.
    return len(parts), pa.concat_tables(parts).combine_chunks()
