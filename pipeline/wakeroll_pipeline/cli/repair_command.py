"""The `repair` command: missing and wrong rows of the tables are restored from other rows, or from Kafka."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wakeroll.errors import missing_extra
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS
from wakeroll_pipeline.cli.json_answers import ChangedTable, RepairAnswer
from wakeroll_pipeline.cli.open_ledger import reading, warehouse_of
from wakeroll_pipeline.cli.options import AsJson, NamedBrokerOptions
from wakeroll_pipeline.cli.output import Output, write_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wakeroll_pipeline.jobs.loss_plan import LossPlan
    from wakeroll_pipeline.jobs.repair import Repaired
    from wakeroll_pipeline.jobs.repair_plan import RepairPlan
    from wakeroll_pipeline.ledger.repair_findings import Finding, WrongDay

out = Output(highlight=False)

Yes = Annotated[bool, typer.Option("--yes", help="Carry out the plan without a question; default: ask in a terminal.")]
AcceptLosses = Annotated[
    bool,
    typer.Option(
        "--accept-losses",
        help="Record in the chain that the rows which cannot be had again are lost; default: ask in a terminal.",
    ),
]


def repair(
    deployment: NamedBrokerOptions,
    yes: Yes = False,
    accept_losses: AcceptLosses = False,
    as_json: AsJson = False,
) -> None:
    """Make missing, wrong and damaged rows of the tables again, while `run` is stopped; the plan is shown first.

    With --bootstrap, events and decisions come from Kafka as far as its log has them. Other decisions and snapshots
    come from a replay of events, assignments and offsets from decisions, daily facts from the rows of their day. Rows
    that cannot be had again can be recorded as lost. The exit code is 1 if the plan was not carried out, or rows are
    lost and that is not recorded. With --json, the command does not prompt: without --yes, the plan is only printed.
    """
    try:
        from wakeroll_pipeline.jobs.repair import repair as carry_out
    except ModuleNotFoundError as missing:
        raise missing_extra("`repair`", "spark", missing) from None

    settings = deployment.settings()
    asked: list[bool] = []

    may_ask = not as_json and sys.stdin.isatty()

    def confirm(plan: "RepairPlan") -> bool:
        if not as_json:
            _write(plan.findings)
            _write(plan.days)
        asked.append(yes or (may_ask and typer.confirm("change the tables?")))
        return asked[-1]

    def accept(plan: "LossPlan") -> bool:
        if not as_json:
            _write(plan.findings)
        return accept_losses or (not yes and may_ask and typer.confirm("record these rows as lost for ever?"))

    with reading(warehouse_of(settings)):
        done = carry_out(settings, confirm, accept)
    is_declined = bool(asked) and not asked[-1]
    left = sum(one.rows for one in done.findings if not one.source and not one.is_on_record)
    code = BROKEN if is_declined or left else HOLDS
    if as_json:
        write_document(_answer(done, code, left, is_executed=not is_declined))
    elif is_declined:
        out.print("nothing has changed; repeat the command with --yes to carry out the plan")
    else:
        _write_done(done, left)
    raise typer.Exit(code)


def _answer(done: "Repaired", exit_code: int, left: int, *, is_executed: bool) -> RepairAnswer:
    return RepairAnswer(
        exit_code=exit_code,
        is_executed=is_executed,
        findings=done.findings,
        changes=[
            ChangedTable(table=one.table.name, deleted=len(one.deleted), appended=len(one.appended))
            for one in done.changes
        ],
        days=done.days,
        refused=[one.table.name for one in done.refused],
        on_record=[one.text for one in done.on_record],
        left=left,
    )


def _write_done(done: "Repaired", left: int) -> None:
    """Print the changes of a repair, and the remaining losses."""
    for change in done.changes:
        out.print(f"{change.table.name}: {len(change.deleted)} keys deleted, {len(change.appended)} rows appended")
    if done.days:
        out.print(f"daily_facts: {len(done.days)} days computed again")
    for change in done.refused:
        out.print(
            f"{change.table.name} was not repaired: other rows of it differ from those that were written, and the "
            "repair would hide that",
            soft_wrap=True,
        )
    _write(one for one in done.findings if not one.source and one.problem == "doubled")
    for loss in done.on_record:
        out.print(loss.text, soft_wrap=True)
    if recorded := sum(one.rows for one in done.findings if one.is_on_record):
        out.print(f"{recorded} rows are lost, and on record from now on")
    elif not done.changes and not done.days:
        out.print("nothing to repair" if not done.findings else "nothing else can be repaired from the tables")
    if left:
        out.print(
            f"{left} rows cannot be had again from the tables; to record them as lost for ever, repeat the command "
            "with --accept-losses",
            soft_wrap=True,
        )


def _write(findings: "Iterable[Finding | WrongDay]") -> None:
    for finding in findings:
        out.print(finding.text, soft_wrap=True)
