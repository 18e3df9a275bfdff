"""The rule of the snapshots: each has the correct hash of its columns; one of an earlier release can be decoded."""

from collections.abc import Iterable, Iterator
from typing import Any

from wakeroll_model.rows import SnapshotRow
from wakeroll_model.snapshot_proof import problem_in
from wakeroll_pipeline.questions.quality.ordered_rows import Broken
from wakeroll_pipeline.questions.quality.rule import rows_rule

HASH = rows_rule(
    "snapshots.hash", "a snapshot has the SHA-256 of its columns; without a hash, its state can be decoded"
)
RULES_OF_SNAPSHOTS = [HASH]
SNAPSHOTS_TO_CHECK = """
    select snapshots.*
    from snapshots
    anti join lost_rows
        on
            lost_rows.table_name = 'snapshots'
            and snapshots.topic = lost_rows.topic
            and snapshots.partition = lost_rows.partition
            and snapshots.offset between lost_rows.first_lost and lost_rows.last_lost
"""
"""Query of the snapshots whose damage is not recorded as accepted; readers never use the others."""


def violations_in_snapshots(rows: Iterable[Any]) -> Iterator[Broken]:
    """Yield the damaged snapshots.

    Args:
        rows: rows of the table `snapshots`, with its columns as attributes, in any order.
    """
    for one in rows:
        row = SnapshotRow(
            topic=one.topic,
            partition=int(one.partition),
            offset=int(one.offset),
            era=int(one.era),
            version=int(one.version),
            at_ms=int(one.at_ms),
            body=bytes(one.body),
            row_hash=one.row_hash if isinstance(one.row_hash, str) else None,
        )
        if problem := problem_in(row):
            at = f"{row.topic}/{row.partition}/{row.era}/{row.offset}"
            yield Broken(HASH.name, at, problem, "an intact snapshot; `wakeroll repair` makes it again")
