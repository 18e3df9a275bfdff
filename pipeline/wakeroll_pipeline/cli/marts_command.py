"""The `marts` command: build and test the dbt models on the ledger."""

from collections import Counter
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from wakeroll_pipeline.cli.ci_reports import Case, JUnitFile, RunClock, RunName, Status, reported_failure, write_junit
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS
from wakeroll_pipeline.cli.open_ledger import engine_for, reading, session, warehouse_of
from wakeroll_pipeline.cli.options import AsJson, ConfigFile, EngineName, Home, settings_of
from wakeroll_pipeline.cli.output import Output, write_document

if TYPE_CHECKING:
    from wakeroll_pipeline.questions.marts import BuildResult

out = Output(highlight=False, soft_wrap=True)

FullRefresh = Annotated[
    bool,
    typer.Option(
        "--full-refresh", help="Rebuild the incremental tables from all rows; default: add the new rows only."
    ),
]


def marts(
    full_refresh: FullRefresh = False,
    as_json: AsJson = False,
    junit: JUnitFile = None,
    run_name: RunName = None,
    engine: EngineName = None,
    home: Home = None,
    config: ConfigFile = None,
) -> None:
    """Build the dbt marts (ownership, lag, cost of rebalances, ...) from the ledger, and run all dbt tests.

    Both engines build the same tables, and each continues those of the other.  The exit code is 1 if a model fails or a
    test finds rows.
    """
    from wakeroll_pipeline.questions.marts import build, ensure_dbt, look_after_marts

    ensure_dbt(engine or "duckdb")
    settings = settings_of(config, home=home)
    warehouse = warehouse_of(settings)
    chosen = engine or engine_for(settings)
    ensure_dbt(chosen)
    options = [*(["--full-refresh"] if full_refresh else []), *(["--log-level", "none"] if as_json else [])]
    run = partial(build, warehouse, settings.logs, *options, engine=chosen)
    clock = RunClock("marts", run_name, chosen, settings.warehouse)
    with reported_failure(clock, as_json=as_json, junit=junit):
        if chosen == "spark":
            with session(settings, out, for_minutes=True), reading(warehouse):
                outcomes = run()
                look_after_marts(warehouse, settings.keep_versions_ms)
        else:
            with out.status("building"), reading(warehouse):
                outcomes = run()
                look_after_marts(warehouse, settings.keep_versions_ms)
    code = HOLDS if all(outcome.is_good for outcome in outcomes) else BROKEN
    if junit is not None:
        write_junit(junit, clock.run(), map(_case_of, sorted(outcomes, key=attrgetter("kind"))))
    if as_json:
        write_document({"exit_code": code, "run": clock.run(), "results": outcomes})
        raise typer.Exit(code)
    counts = Counter(outcome.kind for outcome in outcomes if outcome.is_good)
    for outcome in outcomes:
        if not outcome.is_good:
            out.print(f"[red]failed[/] {outcome.kind} {outcome.name}: {escape(outcome.message)}")
    out.print(f"{counts['model']} models and {counts['test']} tests passed; tables in {settings.warehouse / 'marts'}")
    raise typer.Exit(code)


def _case_of(outcome: "BuildResult") -> Case:
    status: Status = "ok" if outcome.is_good else "skipped" if outcome.status == "skipped" else "broken"
    details = "" if outcome.is_good else outcome.message or outcome.status
    return Case(outcome.kind, outcome.name, f"{outcome.kind} {outcome.name}", status, details)
