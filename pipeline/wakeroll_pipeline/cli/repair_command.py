"""The `repair` command: rows that are missing or wrong in the tables are made again from those that are left."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from wakeroll.errors import missing_extra
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS
from wakeroll_pipeline.cli.open_ledger import reading, warehouse_of
from wakeroll_pipeline.cli.options import Bootstrap, ConfigFile, Home, KafkaConfig, Prefix, settings_of
from wakeroll_pipeline.cli.output import Output

if TYPE_CHECKING:
    from wakeroll_pipeline.jobs.repair_plan import RepairPlan

out = Output(highlight=False)

Yes = Annotated[bool, typer.Option("--yes", help="Carry out the plan without a question; default: ask in a terminal.")]


def repair(
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    kafka_config: KafkaConfig = None,
    prefix: Prefix = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Make missing, wrong and damaged rows of the tables again, while `run` is stopped; the plan is shown first.

    With --bootstrap, events and decisions come from Kafka as far as its log has them. Other decisions and snapshots
    come from a replay of events, assignments and offsets from decisions. The exit code is 1 if the plan was not carried
    out, or rows cannot be had again.
    """
    try:
        from wakeroll_pipeline.jobs.repair import repair as carry_out
    except ModuleNotFoundError as missing:
        raise missing_extra("`repair`", "spark", missing) from None

    settings = settings_of(
        config, look_for_run=False, bootstrap=bootstrap, kafka_config=kafka_config, prefix=prefix, home=home
    )
    asked: list[bool] = []

    def confirm(plan: "RepairPlan") -> bool:
        _write(plan)
        asked.append(yes or (sys.stdin.isatty() and typer.confirm("change the tables?")))
        return asked[-1]

    with reading(warehouse_of(settings)):
        plan = carry_out(settings, confirm)
    left = sum(one.rows for one in plan.findings if not one.source)
    if not plan.changes:
        _write(plan)
        out.print("nothing to repair" if not plan.findings else "nothing else can be repaired from the tables")
    elif not asked[-1]:
        out.print("nothing has changed; repeat the command with --yes to carry out the plan")
        raise typer.Exit(BROKEN)
    else:
        for change in plan.changes:
            out.print(f"{change.table.name}: {len(change.deleted)} keys deleted, {len(change.appended)} rows appended")
    if left:
        out.print(f"{left} rows cannot be had again from the tables", soft_wrap=True)
    raise typer.Exit(BROKEN if left else HOLDS)


def _write(plan: "RepairPlan") -> None:
    for finding in plan.findings:
        out.print(finding.text, soft_wrap=True)
