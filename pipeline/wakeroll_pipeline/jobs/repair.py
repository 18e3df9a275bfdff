"""The repair of a ledger: a plan, a confirmation, and the changes, while no other process writes the tables."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from msgspec import Struct, structs

from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.jobs.doubled_rows import plan_doubled
from wakeroll_pipeline.jobs.loss_plan import LOSABLE, LossPlan, lost_snapshots, plan_losses
from wakeroll_pipeline.jobs.repair_plan import Change, RepairPlan, plan_repair
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.daily_facts import differences, write_day
from wakeroll_pipeline.ledger.delta_files import literal, open_delta, quoted
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.losses import Loss
from wakeroll_pipeline.ledger.openings import forget_opening
from wakeroll_pipeline.ledger.repair_findings import Finding, WrongDay
from wakeroll_pipeline.ledger.row_hashes import stream_of
from wakeroll_pipeline.ledger.stored_marts import path_of_facts
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.recovery.write_turn import WriteTurn
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_locks import ProcessLocks, process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import APPLICATION
from wakeroll_pipeline.storage.parquet_files import HOOKS, SMALL_VALUES, STATES
from wakeroll_pipeline.storage.place import Place

_DELETED_AT_ONCE = 200
"""Number of rows in the condition of one deletion; Delta rewrites the files that contain some of them."""
_REASON = "rows were made again by `wakeroll repair`"
"""Reason of the change in the chain of a table."""
_ACCEPTED = "what is missing was accepted as lost"
_CHANGED = "the tables have changed since the plan was shown, and nothing was repaired; try again"
_APPENDED_AT_ONCE = 20_000
"""Maximum number of rows of an append, as in `record`."""


class Repaired(NamedTuple):
    """The result of a repair."""

    findings: Sequence[Finding]
    """All findings: repaired ones have a source. Losses that were recorded before are left out."""
    changes: Sequence[Change]
    """The changes that were carried out; or the last plan, if it was not confirmed."""
    refused: Sequence[Change] = ()
    """Changes that were refused, because afterwards the chain would prove rows that differ from the written ones."""
    on_record: Sequence[Loss] = ()
    """Losses that an operator had accepted before."""
    days: Sequence[WrongDay] = ()
    """Days whose daily facts were computed again; or those of the last plan, if it was not confirmed."""


def repair(
    settings: Settings,
    confirm: Callable[[RepairPlan], bool],
    accept: Callable[[LossPlan], bool] = lambda _: False,
) -> Repaired:
    """Restore rows of the tables by a plan, if it is confirmed; before that, nothing is changed.

    A crash in between is harmless: the next repair finds the rest.

    Args:
        settings: settings of the deployment; if they name a broker, rows come from Kafka's log first.
        confirm: called with a plan if there is something to change; returns whether to carry it out. It is called again
            for rows that can be derived from those that came from Kafka, and for the daily facts.
        accept: called with the losses that cannot be restored and are not recorded yet, if there are any; returns
            whether to record them in the chain of the tables.

    Raises:
        InvalidUsage: a process writes the tables, or they have changed since the plan; or they are not of this release.
        LeaseLost, Fenced: another process has begun to write the tables.
        NotReachable: no broker answered, and a lease is in Kafka.
        UnreadableTable: a table cannot be read; repair its files first.
    """
    answers: list[bool] = []

    def ask(plan: RepairPlan) -> bool:
        answers.append(confirm(plan))
        return answers[-1]

    with process_locks(settings, [RECORD]) as locks:
        done = _repair_rows(settings, locks, ask, accept)
        # While rows are missing, the facts of their day may be all that is known of them.
        if not all(answers) or done.refused or any(not one.source and not one.is_on_record for one in done.findings):
            return done
        return done._replace(days=_repair_facts(settings, locks, confirm))


def _repair_rows(
    settings: Settings,
    locks: ProcessLocks,
    confirm: Callable[[RepairPlan], bool],
    accept: Callable[[LossPlan], bool],
) -> Repaired:
    findings: list[Finding] = []
    changes: list[Change] = []
    later: list[Change] = []
    turn: WriteTurn | None = None
    # Rows from Kafka come first: they are exact, and others can be made from them.
    for plan_now in (_plan_from_kafka, _plan) if settings.bootstrap else (_plan,):
        plan = plan_now(settings)
        findings += plan.findings
        changes += plan.changes
        _refuse_old_tables(settings, plan.changes)
        if not plan.changes:
            continue
        if not confirm(plan):
            return Repaired(findings, changes)
        turn = turn or WriteTurn(settings, locks.turn_lease)
        # A writer that was suspended may have appended until the turn excluded it.
        if plan_now(settings) != plan:
            raise InvalidUsage(_CHANGED)
        later += [one for one in plan.changes if not one.is_exact]
        for change in plan.changes:
            if change.is_exact:
                turn.confirm()
                _carry_out(settings, change, turn.number)
    losses = _plan_losses(settings, findings, later)
    refused: list[Change] = []
    is_accepted = bool(losses.tables) and accept(losses)
    if is_accepted:
        turn = turn or WriteTurn(settings, locks.turn_lease)
        if _plan_losses(settings, findings, later) != losses:
            raise InvalidUsage(_CHANGED)
        for its in losses.tables:
            turn.confirm()
            append = ArrowSink(turn.number).append
            Chains(settings.warehouse).accept(its.table, its.ends, its.lines, _ACCEPTED, append)
    else:
        unproven = {its.table.name for its in losses.tables if its.has_unproven}
        refused = [one for one in later if one.table.name in unproven]
    for change in later:
        if change not in refused:
            assert turn is not None, "the changes were confirmed"
            turn.confirm()
            _carry_out(settings, change, turn.number)
    return Repaired(
        [
            *(one for one in findings if one.source or one.problem not in LOSABLE),
            *(structs.replace(one, is_on_record=is_accepted) for one in losses.findings),
        ],
        [one for one in changes if one not in refused],
        refused,
        losses.on_record,
    )


def _repair_facts(settings: Settings, locks: ProcessLocks, confirm: Callable[[RepairPlan], bool]) -> list[WrongDay]:
    """Compute wrong daily facts again from the rows; return their days, even without a confirmation."""
    found = Counter(one.day for one in differences(settings.warehouse))
    days = [WrongDay(day=day, differences=count) for day, count in sorted(found.items())]
    if days and confirm(RepairPlan([], [], days)):
        turn = WriteTurn(settings, locks.turn_lease)
        forget_opening(path_of_facts(settings.warehouse))
        for one in days:
            turn.confirm()
            write_day(settings.warehouse, one.day, settings.keep_versions_ms, now_ms())
    return days


def _plan_losses(settings: Settings, findings: Sequence[Finding], changes: Sequence[Change]) -> LossPlan:
    detail = "" if settings.bootstrap else "Kafka's log was not read, because no broker is named"
    with duck_ledger(settings.warehouse) as ledger:
        return plan_losses(ledger, findings, changes, detail)


def _plan_from_kafka(settings: Settings) -> RepairPlan:
    from wakeroll_pipeline.jobs.kafka_rows import plan_from_kafka

    with duck_ledger(settings.warehouse) as ledger:
        return plan_from_kafka(settings, ledger)


def _plan(settings: Settings) -> RepairPlan:
    with duck_ledger(settings.warehouse) as ledger:
        doubled = plan_doubled(ledger)
        plan = plan_repair(ledger, settings.partitions, lost_snapshots(ledger))
        return RepairPlan([*doubled.findings, *plan.findings], [*doubled.changes, *plan.changes])


def _refuse_old_tables(settings: Settings, changes: Sequence[Change]) -> None:
    """Reject tables without the newest columns, which only `run` adds.

    Raises:
        InvalidUsage: the message names the table.
    """
    for change in changes:
        delta = open_delta(path_of(settings.warehouse, change.table))
        there = {field.name for field in delta.schema().fields}
        if new := [name for name in change.table.row.__struct_fields__ if name not in there]:
            raise InvalidUsage(
                f"the table {change.table.name} lacks the column {new[0]} of this release: start `wakeroll run` once, "
                "which adds it, stop it, and repeat this command"
            )


def _carry_out(settings: Settings, change: Change, number: int) -> None:
    forget_opening(path_of_facts(settings.warehouse))  # rows before its day may come
    place = path_of(settings.warehouse, change.table)
    properties = STATES if change.table is SNAPSHOTS else SMALL_VALUES
    commit = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
    if change.is_exact:
        # The chain has a line for these positions already: its hash proves that the rows are the original ones.
        _change_rows(place, change, number, properties, commit)
        return
    ends: dict[str, int] = {}
    for row in (*change.deleted, *change.appended):
        values = structs.asdict(row)
        stream, position = stream_of(change.table, values), values[change.table.position]
        ends[stream] = max(position, ends.get(stream, position))
    # Lines behind these rows stay, so they still prove theirs.
    with Chains(settings.warehouse).rewriting(change.table, ends, _REASON, ArrowSink(number).append):
        _change_rows(place, change, number, properties, commit)


def _change_rows(
    place: Place, change: Change, number: int, properties: WriterProperties, commit: CommitProperties
) -> None:
    for some in _parts(change.deleted, _DELETED_AT_ONCE):
        condition = " or ".join(f"({_key_condition(change.table.key, row)})" for row in some)
        table: DeltaTable = open_delta(place)
        table.delete(
            condition, writer_properties=properties, commit_properties=commit, post_commithook_properties=HOOKS
        )
    sink = ArrowSink(number, properties)
    for some in _parts(change.appended, _APPENDED_AT_ONCE):
        sink.append(arrow_table(change.table.row, some), place)


def _parts(rows: Sequence[Struct], size: int) -> Iterator[Sequence[Struct]]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def _key_condition(key: Sequence[str], row: Struct) -> str:
    """Return the SQL condition that a row has the key of this one."""
    values: dict[str, Any] = structs.asdict(row)
    return " and ".join(
        f"{quoted(name)} = {values[name] if isinstance(values[name], int) else literal(values[name])}" for name in key
    )
