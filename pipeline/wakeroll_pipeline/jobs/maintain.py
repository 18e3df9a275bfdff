"""Upkeep of a whole deployment in one go, for a ledger at rest: tables, marts, results of `check`, checkpoints.

The tables are changed only while no other process writes them: during a `run`, which maintains them itself, they are
skipped. The other parts can be cleaned at any time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from deltalake.exceptions import DeltaError
from msgspec import Struct

from wakeroll.epoch_ms import now_ms
from wakeroll_model.rows import RECORDED, TABLES, Table
from wakeroll_pipeline.jobs.maintained_parts import ForgetResults, Kind, parts_of
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.compaction import compact, small_files_of
from wakeroll_pipeline.ledger.daily_facts import missing_days, write_day
from wakeroll_pipeline.ledger.delta_files import bounds_of, is_delta, open_delta
from wakeroll_pipeline.ledger.expired_versions import delete_expired, expired_of
from wakeroll_pipeline.ledger.file_rewrites import NotRewritten
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.maintenance import Upkeep
from wakeroll_pipeline.ledger.retention import kept_from
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.table_damage import problem_in
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_lock import Locked, only_one
from wakeroll_pipeline.runtime.process_locks import ProcessLocks, process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.small_files import FoundFile, StorageFailed

_MAINTAINS = "maintains this deployment"


class Maintained(Struct, frozen=True, kw_only=True):
    """The result of upkeep for one part of a deployment, or the plan for it."""

    name: str
    kind: Kind
    files_before: int
    bytes_before: int
    files_after: int
    """Number of files afterwards. In a plan, it excludes files that would be deleted, and includes files that would be
    combined."""
    bytes_after: int
    small_files: int = 0
    """In a plan: number of files of rows that would be combined."""
    rows_before_ms: int | None = None
    """In a plan: moment before which rows are old and would be deleted (epoch ms); None if there are none."""


class Skipped(Struct, frozen=True):
    """A part that was skipped."""

    part: str
    why: str


class Failure(NamedTuple):
    """A step that failed; the next upkeep repeats it."""

    step: str
    error: Exception


class Report(NamedTuple):
    """The result of upkeep, or the plan for it."""

    parts: Sequence[Maintained]
    skipped: Sequence[Skipped] = ()
    failures: Sequence[Failure] = ()


def maintain(settings: Settings, forget_results: ForgetResults, *, newest_only: bool = False) -> Report:
    """Maintain everything that grows: rows, files and logs of the tables, marts, results, checkpoints.

    A crash in between is harmless: the next call finds the rest. While another process writes the tables, these are
    skipped; during another call, everything is skipped.

    Args:
        settings: settings of the deployment.
        forget_results: deletes old results of `check`.
        newest_only: delete all versions of the tables except the newest; a query that runs meanwhile may fail.

    Raises:
        LeaseLost, Fenced: another process has begun to write the tables.
        NotReachable: no broker answered, and a lease is in Kafka.
        StorageFailed: a store did not answer.
    """
    done: list[Maintained] = []
    skipped: list[Skipped] = []
    failures: list[Failure] = []
    try:
        with only_one(settings.lock_file(settings.warehouse / "maintain.lock"), _MAINTAINS):
            try:
                with process_locks(settings, [RECORD]) as locks:
                    of_tables = _maintain_tables(settings, locks, newest_only=newest_only)
                done += of_tables.parts
                failures += of_tables.failures
            except Locked as other:
                skipped.append(Skipped("tables", f"process {other.holder} writes them, and looks after them"))
            for part in parts_of(settings, forget_results):
                before = part.files()
                try:
                    part.clean(now_ms())
                except (DeltaError, OSError) as error:
                    failures.append(Failure(f"clean {part.name}", error))
                done.append(_maintained(part.name, part.kind, before, part.files()))
    except Locked as other:
        skipped.append(Skipped("everything", f"process {other.holder} does it already"))
    return Report(done, skipped, failures)


def plan(settings: Settings, forget_results: ForgetResults) -> Report:
    """Return the plan of `maintain`, as far as the logs of the tables show it; nothing is changed.

    Raises:
        DeltaError: the log of a table is damaged.
        StorageFailed: a store did not answer.
    """
    now = now_ms()
    planned = []
    for table in _tables(settings):
        folder = path_of(settings.warehouse, table)
        delta, before = open_delta(folder), small_files.files(folder)
        small = len(small_files_of(delta, table))
        from_ms = kept_from(table, now, settings.keep_events_ms, settings.keep_decisions_ms)
        bounds = bounds_of(delta, table.at) if table in RECORDED else None
        planned.append(
            _maintained(
                table.name,
                "table",
                before,
                _without(before, expired_of(folder, settings.keep_versions_ms, now).files),
                small if small > 1 else 0,
                from_ms if bounds is not None and bounds[0] < from_ms else None,
            )
        )
    for part in parts_of(settings, forget_results):
        before = part.files()
        planned.append(_maintained(part.name, part.kind, before, _without(before, part.old(now))))
    return Report(planned)


def _maintain_tables(settings: Settings, locks: ProcessLocks, *, newest_only: bool) -> Report:
    """Maintain the tables, while this process has the lock to write them."""
    tables = _tables(settings)
    before = {table.name: small_files.files(path_of(settings.warehouse, table)) for table in tables}
    for table in tables:
        folder = path_of(settings.warehouse, table)
        if (problem := problem_in(table, open_delta(folder), folder)) is not None:
            return Report((), (), [Failure("look after the tables", problem)])
    turn = WriteTurn(settings, locks.turn_lease)
    chains, append = Chains(settings.warehouse), ArrowSink(turn.number).append
    chains.begin()  # before the commits are deleted that have the newest lines
    chains.gather(append)
    for table in tables:
        chains.finish(table, append)
    failures: list[Failure] = []
    try:
        for day in missing_days(settings.warehouse):
            turn.confirm()
            write_day(settings.warehouse, day, settings.keep_versions_ms, now_ms())
    except (DeltaError, UnreadableTable, StorageFailed, OSError) as error:
        failures.append(Failure("write the daily facts", error))  # and the rows stay that they are computed from
    if not failures:
        upkeep = Upkeep(
            settings,
            rewriting=lambda table, ends: chains.rewriting(table, ends, "older than the retention", append),
            tables=tables,
        )
        turn.confirm()
        failures += [Failure(step, error) for step, error in upkeep.delete_old_rows().items()]
    done = []
    for table in tables:
        folder = path_of(settings.warehouse, table)
        turn.confirm()
        try:
            while compact(folder, table):
                turn.confirm()
            keep = (0, now_ms(), 0) if newest_only else (settings.keep_versions_ms, now_ms())
            delete_expired(folder, *keep)
        except (DeltaError, NotRewritten, StorageFailed, OSError) as error:
            failures.append(Failure(f"combine and clean the files of {table.name}", error))
        done.append(_maintained(table.name, "table", before[table.name], small_files.files(folder)))
    return Report(done, (), failures)


def _tables(settings: Settings) -> list[Table]:
    """Return the existing tables: an earlier release has written fewer."""
    return [table for table in TABLES.values() if is_delta(path_of(settings.warehouse, table))]


def _without(files: Sequence[FoundFile], gone: Sequence[FoundFile]) -> list[FoundFile]:
    places = {one.place for one in gone}
    return [one for one in files if one.place not in places]


def _maintained(
    name: str,
    kind: Kind,
    before: Sequence[FoundFile],
    after: Sequence[FoundFile],
    small: int = 0,
    rows_before_ms: int | None = None,
) -> Maintained:
    return Maintained(
        name=name,
        kind=kind,
        files_before=len(before),
        bytes_before=sum(one.size for one in before),
        files_after=len(after),
        bytes_after=sum(one.size for one in after),
        small_files=small,
        rows_before_ms=rows_before_ms,
    )
