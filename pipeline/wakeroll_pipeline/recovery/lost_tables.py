"""Lost tables, which `record` writes again from the records that Kafka still has."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage, NotReachable
from wakeroll_model.chain import NOWHERE, PROVING
from wakeroll_model.partitioner import ControlPartition
from wakeroll_model.rows import CHAINED, DECISIONS, EVENTS, RECORDED, TABLES, Table
from wakeroll_pipeline.kafka.published_lines import forget_published
from wakeroll_pipeline.ledger.chains import (
    Chains,
    gathered_lines,
    highest_positions,
    lines_in_commits,
    newest_line,
    range_in_sql,
    source_of,
)
from wakeroll_pipeline.ledger.delta_files import connected, files_of, is_delta, literal, open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.proven_rows import broken_spans, chain_of, covered_by
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.table_damage import lost_file
from wakeroll_pipeline.recovery.batch_files import offsets_in
from wakeroll_pipeline.recovery.checkpoint_state import latest_recording, progress_of
from wakeroll_pipeline.recovery.write_turn import begin_recording_again
from wakeroll_pipeline.runtime.process_locks import process_name
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.parquet_files import HOOKS
from wakeroll_pipeline.storage.place import Place


def lost_tables(settings: Settings) -> list[str]:
    """Return the tables that do not exist, or lack files or their newest rows, although `record` had written them.

    The chain has the last position of each stream, so a table also counts as lost if all its rows or its newest commits
    are gone. Losses that an operator has accepted do not count (see `wakeroll repair`).
    """
    checkpoint = settings.checkpoint(latest_recording(settings))
    progress = progress_of(checkpoint)
    if progress is None:
        return []
    topics = settings.connection.topics if settings.bootstrap else Topics(settings.prefix)
    its_topics = {EVENTS.name: topics.control, DECISIONS.name: (topics.decisions,)}
    lost = []
    for table in RECORDED:
        place = path_of(settings.warehouse, table)
        # Retention never deletes the newest row of a stream.
        if (
            not is_delta(place)
            or (
                table.name in its_topics
                and _has_read(checkpoint, progress.next, its_topics[table.name])
                and _is_empty(place)
            )
            or lost_file(open_delta(place), place) is not None
            or _lacks_newest_rows(settings.warehouse, table)
        ):
            lost.append(table.name)
    return lost


def _lacks_newest_rows(warehouse: Place, table: Table) -> bool:
    """Return whether the newest lines of a table prove rows after its last ones."""
    folder = warehouse / table.name
    lines = gathered_lines(warehouse, f"table_name = {literal(table.name)} order by number desc limit {_RECENT}")
    lines.reverse()
    delta = open_delta(folder)
    lines += lines_in_commits(folder, delta.version(), lines[-1].number if lines else 0)
    ends: dict[str, int] = {}
    for span in covered_by(lines).spans:
        if span.line.kind in PROVING:
            ends |= {stream: max(end, ends.get(stream, end)) for stream, end in span.line.positions.items()}
    if not ends:
        return False
    # Only the rows from these positions on: by its statistics, DuckDB skips the others, which are nearly all.
    newest = " or ".join(range_in_sql(table, stream, end - 1, _LAST) for stream, end in ends.items())
    with connected(folder) as connection:
        source = f"(select * from {source_of(delta, folder, table)} where {newest}) as newest"
        last = highest_positions(connection, source, table)
    return any(end > last.get(stream, NOWHERE) for stream, end in ends.items())


_LAST = 2**62
"""A position after all others."""
_RECENT = 2_000
"""Number of the newest lines of a table that are read."""


def _has_read(checkpoint: Place, reached: Mapping[ControlPartition, int], topics: Sequence[str]) -> bool:
    """Return whether committed batches, up to these offsets, have read a record of these topics."""
    if not small_files.exists(checkpoint.child(*_FIRST.split("/"))):
        return False
    first = offsets_in(checkpoint, _FIRST)
    return any(offset > first.get(place, offset) for place, offset in reached.items() if place[0] in topics)


_FIRST = "sources/0/0"
"""File with the offsets at which a query began."""


def _is_empty(place: Place) -> bool:
    """Return whether a table certainly has no row, by its log."""
    rows: Any = open_delta(place).get_add_actions(flatten=True).column("num_records")
    return all(value.as_py() == 0 for value in rows)


def refuse_lost_tables(settings: Settings) -> None:
    """Reject a start of `record` that would leave out the rows of lost tables.

    Raises:
        InvalidUsage: a table is lost (see `lost_tables`); the message names the remedy.
    """
    if lost := lost_tables(settings):
        raise InvalidUsage(
            f"{settings.warehouse} has no table {', '.join(lost)}, or no row of it, or lacks files or the newest rows "
            f"of it, but {settings.checkpoint(latest_recording(settings))} has read records for it: if the tables were "
            "lost, `wakeroll restore` lets the next run write them again, from the records that Kafka still has; "
            "`wakeroll repair` makes assignments and offsets again from decisions, and records what cannot be had "
            "again; if the tables are elsewhere, set --home"
        )


def restore_tables(settings: Settings, stack: ExitStack) -> list[str]:
    """Let `record` begin again with the first records that Kafka has, if tables were lost.

    The other tables keep their rows: `record` drops rows that a table already has.

    Args:
        settings: settings of the deployment.
        stack: holds the lock of `record` until the caller closes it.

    Returns:
        Sentences for the operator; none if no table was lost.

    Raises:
        InvalidUsage: a process still writes the tables.
        UnreadableTable: a table has a damaged file, or its log lacks a commit; the message names the remedy.
    """
    lost = lost_tables(settings)
    if not lost:
        return []
    for name in lost:
        place = settings.warehouse / name
        if is_delta(place) and (damage := _damage_that_stays(place)) is not None:
            raise damage
    begin_recording_again(settings, stack)
    notes = [
        f"record writes {', '.join(lost)} again, from the first records that Kafka has; rows from records that Kafka "
        "has deleted are lost",
        *_forget_lost_chains(settings),
    ]
    for name in lost:
        if is_delta(settings.warehouse / name) and (files := _forget_missing_files(settings.warehouse / name)):
            notes.append(
                f"{files} files of {name} are missing: the table does not name them any more. Stop `run` when it has "
                "written the newest rows, and let `wakeroll repair` make those before them again"
            )
        if is_delta(settings.warehouse / name) and (_lacks_newest_rows(settings.warehouse, TABLES[name])):
            notes += _begin_chain_again(settings.warehouse, TABLES[name])
    return notes


def _begin_chain_again(warehouse: Place, table: Table) -> list[str]:
    """Let the chain of a table begin again with the remaining rows, because new lines will cover the lost ones."""
    with duck_ledger(warehouse) as ledger:
        last = highest_positions(ledger.table_connection, table.name, table)
        covered = covered_by(chain_of(ledger, table).lines)
        differs = [
            one.span.line.number
            for one in broken_spans(ledger, table, table.name, covered)
            if any(end <= last.get(stream, NOWHERE) for stream, end in one.span.line.positions.items())
        ]
    if not last:  # the recorder begins the chain of an empty table again
        return []
    Chains(warehouse).begin_again(table, "the newest rows were lost", ArrowSink().append, is_proven=not differs)
    if not differs:
        return []
    return [
        f"the rows that {table.name} has left are not proven any more: those of line {differs[0]} of its chain were "
        "others before"
    ]


def _missing_files(place: Place) -> list[str]:
    if not place.is_local:
        return []
    return [file for file in files_of(open_delta(place), place) if not Path(file).exists()]


def _damage_that_stays(place: Place) -> UnreadableTable | None:
    """Return the damage of a table other than missing files."""
    missing = _missing_files(place)
    damage = lost_file(open_delta(place), place)
    return None if damage is None or any(f"the file {file} is missing" in str(damage) for file in missing) else damage


def _forget_missing_files(place: Place) -> int:
    """Remove missing files from the log of a table; return their number."""
    count = len(_missing_files(place))
    if count:
        open_delta(place).repair(post_commithook_properties=HOOKS)
    return count


def _forget_lost_chains(settings: Settings) -> list[str]:
    """Publish that lines of lost chains are no longer valid; return sentences for the operator.

    A chain that the table `chain` still has is continued.
    """
    begun = [table.name for table in CHAINED if newest_line(settings.warehouse, table.name) is None]
    topic = settings.connection.topics.chain
    try:
        forgotten = forget_published(settings.connection, begun, "the tables were lost", process_name("restore"))
    except NotReachable as error:
        return [
            f"the lines that were published in {topic} count as before, so `wakeroll check --bootstrap` will miss "
            f"them: {error}"
        ]
    if not forgotten:
        return []
    return [f"the chains of {', '.join(forgotten)} begin again; their lines in {topic} do not count any more"]
