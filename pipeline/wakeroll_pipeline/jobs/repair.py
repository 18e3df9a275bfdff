"""The repair of a ledger: a plan, a confirmation, and the changes, while no other process writes the tables."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import msgspec
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties
from msgspec import Struct

from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import SNAPSHOTS
from wakeroll_pipeline.jobs.repair_plan import Change, RepairPlan, plan_repair
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.delta_files import literal, open_delta, quoted
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.tables import path_of
from wakeroll_pipeline.recovery.record_turn import Turn
from wakeroll_pipeline.runtime.deciding_queries import RECORD
from wakeroll_pipeline.runtime.process_locks import process_locks
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import APPLICATION
from wakeroll_pipeline.storage.parquet_files import HOOKS, SMALL_VALUES, STATES
from wakeroll_pipeline.storage.place import Place

_DELETED_AT_ONCE = 200
"""Rows in the condition of a deletion; Delta rewrites the files that have some of them."""
_REASON = "rows were made again by `wakeroll repair`"
"""Reason in the chain of a table."""
_APPENDED_AT_ONCE = 20_000
"""Rows of an append, as in `record`."""


def repair(settings: Settings, confirm: Callable[[RepairPlan], bool]) -> RepairPlan:
    """Make rows of the tables again, as a plan says, if it is confirmed; before that, nothing is changed.

    A crash in between is harmless: the next repair finds the rest.

    Args:
        settings: settings of the deployment; if they name a broker, rows come from Kafka's log first.
        confirm: called with a plan if there is something to change; returns whether to carry it out. It is called twice
            if rows come from Kafka and others can be made from them.

    Returns:
        The findings, and the changes that were carried out, or that were planned last and not confirmed.

    Raises:
        InvalidUsage: a process writes the tables, or they have changed since the plan; or they are not of this release.
        LeaseLost, Fenced: another process writes the tables since.
        NotReachable: no broker answered, and a lease is in Kafka.
        UnreadableTable: a table cannot be read; repair its files first.
    """
    found = RepairPlan([], [])
    with ExitStack() as stack:
        locks = stack.enter_context(process_locks(settings, [RECORD]))
        turn: Turn | None = None
        # Rows from Kafka come first: they are exact, and others can be made from them.
        for plan_now in (_plan_from_kafka, _plan) if settings.bootstrap else (_plan,):
            plan = plan_now(settings)
            found = RepairPlan([*found.findings, *plan.findings], [*found.changes, *plan.changes])
            _refuse_old_tables(settings, plan.changes)
            if not plan.changes:
                continue
            if not confirm(plan):
                break
            turn = turn or Turn(settings, locks.turn_lease)
            # A writer that was suspended may have appended until the turn excluded it.
            if plan_now(settings) != plan:
                raise InvalidUsage(
                    "the tables have changed since the plan was shown, and nothing was repaired; try again"
                )
            for change in plan.changes:
                turn.confirm()
                _carry_out(settings, change, turn.number)
    return found


def _plan_from_kafka(settings: Settings) -> RepairPlan:
    from wakeroll_pipeline.jobs.kafka_rows import plan_from_kafka

    with duck_ledger(settings.warehouse, refuse_large=False) as ledger:
        return plan_from_kafka(settings, ledger)


def _plan(settings: Settings) -> RepairPlan:
    with duck_ledger(settings.warehouse, refuse_large=False) as ledger:
        return plan_repair(ledger, settings.partitions)


def _refuse_old_tables(settings: Settings, changes: Sequence[Change]) -> None:
    """Reject tables without the newest columns: only `run` adds these.

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
    place = path_of(settings.warehouse, change.table)
    properties = STATES if change.table is SNAPSHOTS else SMALL_VALUES
    commit = CommitProperties(app_transactions=[Transaction(APPLICATION, number)])
    if change.is_exact:
        # The chain has a line for these positions already: its hash proves that the rows are the original ones.
        _change_rows(place, change, number, properties, commit)
        return
    with Chains(settings.warehouse).rewriting(change.table, None, _REASON, ArrowSink(number).append):
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
    values: dict[str, Any] = msgspec.structs.asdict(row)
    return " and ".join(
        f"{quoted(name)} = {values[name] if isinstance(values[name], int) else literal(values[name])}" for name in key
    )
