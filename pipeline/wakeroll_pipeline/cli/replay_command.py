"""The `replay` command: decide again from the archived log, and compare with the recorded decisions."""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import without_era
from wakeroll_model.events import UNREADABLE
from wakeroll_model.rows import EVENTS
from wakeroll_pipeline.cli.ci_reports import Case, JUnitFile, RunClock, RunName, Status, reported_failure, write_junit
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS, NOT_CHECKED
from wakeroll_pipeline.cli.open_ledger import announce, ledger
from wakeroll_pipeline.cli.options import AsJson, EngineName, TableOptions, time_option
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.tables_looked_at import TableLookedAt, tables_looked_at

if TYPE_CHECKING:
    from wakeroll_pipeline.ledger.period import Period
    from wakeroll_pipeline.questions.replay_check import Checked, Difference, UnequalSnapshot

out = Output(highlight=False)

_SHOWN_PARTS = 8
"""Maximum number of parts of a state that are shown for each snapshot that differs."""

From = Annotated[
    int | None,
    time_option("--from", "First moment to replay, in the log's time; default: the oldest event."),
]
To = Annotated[
    int | None,
    time_option("--to", "First moment not to replay, in the log's time; default: after the newest event."),
]
OnlyGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        metavar="GROUP",
        help="Compare the decisions about this group only, without those about its held pulls; default: all groups.",
    ),
]


def replay(
    deployment: TableOptions,
    from_: From = None,
    to: To = None,
    group: OnlyGroup = None,
    as_json: AsJson = False,
    junit: JUnitFile = None,
    run_name: RunName = None,
    engine: EngineName = None,
) -> None:
    """Decide again from the archived log, and compare with the recorded decisions byte for byte.

    The state is compared with each snapshot that the replay passes. The exit code is 1 if a decision or a snapshot
    differs. It is 3 if nothing differs, but some decisions cannot be compared and no operator has accepted that (see
    `wakeroll repair`).
    """
    from wakeroll_pipeline.ledger.period import Period

    period = Period(from_, to)
    if period.from_ms is not None and period.to_ms is not None and period.from_ms >= period.to_ms:
        raise InvalidUsage(f"the period is empty ({period}); --from must be before --to")
    settings = deployment.settings()
    chosen: Engine = engine or "duckdb"
    clock = RunClock("replay", run_name, chosen, settings.warehouse)
    with reported_failure(clock, as_json=as_json, junit=junit), ledger(settings, out, chosen) as opened:
        checks = _replay(opened, settings.partitions, period, group)
        looked_at = _looked_at(opened, period) if as_json or junit is not None else []
    differences = sum(one.differences for one in checks)
    unequal = [(one.shard, snapshot) for one in checks for snapshot in one.unequal]
    code = BROKEN if differences or unequal else NOT_CHECKED if any(_is_open(one) for one in checks) else HOLDS
    if junit is not None:
        write_junit(junit, clock.run(), map(_case_of, checks), looked_at)
    if as_json:
        facts = {"run": clock.run(), "period": {"from_ms": period.from_ms, "to_ms": period.to_ms}, "tables": looked_at}
        write_document({"is_equal": code == HOLDS, "exit_code": code, **facts, "shards": checks})
        raise typer.Exit(code)
    out.print(_shards_table(checks))
    if differences:
        out.print(_differences_table(checks))
    shards = len({without_era(one.shard) for one in checks})
    counts = f"{shards} shards" if shards > 1 else "1 shard"
    counts += f", {_sum(checks, 'events')} events, {_sum(checks, 'compared')} decisions compared"
    out.print(f"{counts}: [red]{differences} differ[/]" if differences else f"{counts}: [green]equal[/]")
    snapshots = f"{_sum(checks, 'snapshots')} snapshots compared with the state of the replay"
    out.print(f"{snapshots}: [red]{len(unequal)} differ[/]" if unequal else f"{snapshots}: [green]equal[/]")
    for shard, snapshot in unequal:
        out.print(f"{shard}: {_text_of_snapshot(snapshot)}", soft_wrap=True)
    for one in checks:
        if one.unknown:
            out.print(f"{one.shard}: {one.unknown} decisions cannot be compared: {one.why}", soft_wrap=True)
        if one.lost:
            out.print(f"{one.shard}: {one.lost} decisions are missing on record, and were not compared")
        if one.edited:
            out.print(f"{one.shard}: {_text_of_edited(one)}")
    if not_recorded := _sum(checks, "not_recorded"):
        out.print(f"the log leads to {not_recorded} more decisions that the tables do not hold yet")
    raise typer.Exit(code)


def _replay(opened: Ledger, partitions: int, period: "Period", group: str | None) -> "list[Checked]":
    if opened.engine == "spark":
        from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
        from wakeroll_pipeline.questions.replay_check import replay_group
        from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark

        assert isinstance(opened, SparkLedger)
        if group is not None:
            return replay_group(opened, partitions, period, group)
        return replay_in_spark(opened, partitions, period)
    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
    from wakeroll_pipeline.ledger.period import Period
    from wakeroll_pipeline.questions.replay_here import replay_here

    assert isinstance(opened, DuckLedger)
    if period == Period() and group is None:
        announce(opened.opened.rows_of(EVENTS), _US_PER_EVENT, os.cpu_count() or 1)
    return replay_here(opened, partitions, period, group)


def _looked_at(opened: Ledger, period: "Period") -> list[TableLookedAt]:
    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger

    if not isinstance(opened, DuckLedger) or (period.from_ms, period.to_ms) == (None, None):
        return tables_looked_at(opened, period)
    with opened.within(period.from_ms or 0, period.to_ms) as part:
        return tables_looked_at(part, period)


_US_PER_EVENT = 30
"""CPU time of a replay per record of the archived log (docs/performance.md)."""


def _is_open(one: "Checked") -> bool:
    return bool(one.unknown) and not one.is_on_record


def _case_of(one: "Checked") -> Case:
    begin = "the start" if one.after < 0 else f"the snapshot at {one.after}"
    name = f"{one.shard} from {begin}" if not one.unknown else f"{one.shard}: {one.why}"
    says = f"{one.events} events lead to the recorded decisions, of which {one.compared} are compared"
    says += f", and to the states of {one.snapshots} snapshots"
    if one.unknown:
        status: Status = "skipped" if one.is_on_record else "not_checked"
        return Case("decisions", name, says, status, f"{one.unknown} decisions cannot be compared: {one.why}")
    lines = [
        f"seq {difference.seq}, {field}: recorded {recorded}, decided again {decided}"
        for difference in one.first
        for field, recorded, decided in _fields(difference)
    ]
    if one.differences:
        lines.insert(0, f"{one.differences} decisions differ; the first:")
    lines += [_text_of_snapshot(snapshot) for snapshot in one.unequal]
    if (one.lost or one.edited) and not lines:
        left = [f"{one.lost} decisions are missing on record"] if one.lost else []
        left += [_text_of_edited(one)] if one.edited else []
        return Case("decisions", name, says, "skipped", "; ".join(left))
    return Case("decisions", name, says, "broken" if lines else "ok", "\n".join(lines))


def _text_of_edited(one: "Checked") -> str:
    return f"{one.edited} decisions differ from those of the replay on record: their rows were accepted as unproven"


def _text_of_snapshot(one: "UnequalSnapshot") -> str:
    parts = ", ".join(one.parts[:_SHOWN_PARTS]) + (" ..." if len(one.parts) > _SHOWN_PARTS else "")
    return f"the snapshot at {one.offset} differs in: {parts}"


def _sum(checks: "Sequence[Checked]", name: str) -> int:
    return sum(getattr(one, name) for one in checks)


def _shards_table(checks: "Sequence[Checked]") -> Table:
    table = Table(title="decided again")
    table.add_column("shard and era")
    table.add_column("from")
    for name in ("events", "decisions", "differ"):
        table.add_column(name, justify="right")
    for one in checks:
        if one.unknown:
            continue
        begin = "the start" if one.after < 0 else f"the snapshot at {one.after}"
        table.add_row(one.shard, begin, str(one.events), str(one.compared), str(one.differences))
    return table


def _differences_table(checks: "Sequence[Checked]") -> Table:
    table = Table(title="the first differences of each shard", show_lines=True)
    for name in ("shard and era", "seq", "field", "recorded", "decided again"):
        table.add_column(name, overflow="fold")
    for one in checks:
        for difference in one.first:
            for field, recorded, decided in _fields(difference):
                table.add_row(one.shard, str(difference.seq), field, recorded, decided)
    return table


def _fields(difference: "Difference") -> Iterator[tuple[str, str, str]]:
    """Yield the fields in which two decisions differ.

    If one decision is missing, or both have equal fields but different bytes, yield the whole texts.
    """
    recorded, decided = (_object_of(text) for text in (difference.recorded, difference.decided))
    names = [name for name in {**recorded, **decided} if recorded.get(name) != decided.get(name)]
    if recorded and decided and names:
        for name in names:
            yield name, _text_of(recorded.get(name)), _text_of(decided.get(name))
    else:
        yield "whole record", difference.recorded or "none", difference.decided or "none"


def _object_of(text: str | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except UNREADABLE:
        return {}


def _text_of(value: object) -> str:
    return msgspec.json.encode(value).decode()
