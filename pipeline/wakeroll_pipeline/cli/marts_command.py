"""The `marts` command: build and test the dbt models on the ledger."""

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.cli.ci_reports import Case, JUnitFile, RunClock, RunName, Status, reported_failure, write_junit
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS
from wakeroll_pipeline.cli.json_answers import MartsAnswer
from wakeroll_pipeline.cli.open_ledger import engine_for, reading, session, warehouse_of
from wakeroll_pipeline.cli.options import AsJson, EngineName, TableOptions
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
Select = Annotated[
    list[str] | None,
    typer.Option(
        "--select",
        metavar="MODELS",
        help="Build and test only these models, in dbt's words, such as +storms; may be repeated; default: all.",
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="MODELS", help="Leave out these models; may be repeated; default: none."),
]
Variables = Annotated[
    str | None,
    typer.Option(
        "--vars",
        metavar="JSON",
        help="Variables of the dbt project, such as '{\"storm_gap_s\": 30}'; default: its own.",
    ),
]
ProjectFolder = Annotated[
    Path | None,
    typer.Option(
        "--project",
        metavar="FOLDER",
        help="dbt project with models beside those of wakeroll, which are its package; default: wakeroll's alone.",
    ),
]
Results = Annotated[
    Path | None,
    typer.Option(
        "--results",
        metavar="FOLDER",
        help="Folder for run_results.json, manifest.json, compiled SQL and docs; default: logs/dbt, in --home.",
    ),
]
WithDocs = Annotated[
    bool,
    typer.Option("--docs", help="Write dbt's documentation too: docs/static_index.html in the folder of --results."),
]
PrintPackage = Annotated[
    bool,
    typer.Option("--package", help="Print the folder of wakeroll's dbt project, for packages.yml, and build nothing."),
]
DbtOptions = Annotated[
    list[str] | None,
    typer.Argument(metavar="[-- DBT_OPTION...]", help="Further options of `dbt build`, such as --fail-fast."),
]


def marts(
    deployment: TableOptions,
    dbt_options: DbtOptions = None,
    select: Select = None,
    exclude: Exclude = None,
    full_refresh: FullRefresh = False,
    variables: Variables = None,
    project: ProjectFolder = None,
    results: Results = None,
    with_docs: WithDocs = False,
    print_package: PrintPackage = False,
    as_json: AsJson = False,
    junit: JUnitFile = None,
    run_name: RunName = None,
    engine: EngineName = None,
) -> None:
    """Build the dbt marts (ownership, lag, cost of rebalances, ...) from the ledger, and run all dbt tests.

    Both engines build the same tables, and each continues those of the other.  The exit code is 1 if a model fails or a
    test finds rows.
    """
    from wakeroll_pipeline.questions.marts import PROJECT, build, ensure_dbt, look_after_marts

    if print_package:
        typer.echo(PROJECT)
        return
    given = _variables(variables)
    if project is not None and not (project / "dbt_project.yml").is_file():
        raise InvalidUsage(f"--project {project} has no dbt_project.yml; it must be the folder of a dbt project")
    settings = deployment.settings()
    warehouse = warehouse_of(settings)
    ensure_dbt(engine or "duckdb")
    chosen = engine or engine_for(settings)
    ensure_dbt(chosen)
    options = [*_repeated("--select", select), *_repeated("--exclude", exclude), *(dbt_options or [])]
    if select or exclude:
        # A test of models that are left out would fail: in DuckDB, staging models exist for the time of a run only.
        options = ["--indirect-selection", "cautious", *options]
    options += ["--full-refresh"] if full_refresh else []
    quiet = ["--log-level", "none"] if as_json else []
    run = partial(
        build,
        warehouse,
        settings.logs,
        *quiet,
        engine=chosen,
        variables=given,
        project=project or PROJECT,
    )
    folder = results or settings.logs / "dbt"
    clock = RunClock("marts", run_name, chosen, settings.warehouse)
    with reported_failure(clock, as_json=as_json, junit=junit):
        started = session(settings, out, for_minutes=True) if chosen == "spark" else out.status("building")
        with started, reading(warehouse):
            outcomes = run(*options, results=folder)
            if with_docs:
                # It writes a manifest and results too, which are not those of the build.
                run("--static", results=folder / "docs", command="docs generate")
            look_after_marts(warehouse, settings.keep_versions_ms)
    code = HOLDS if all(outcome.is_good for outcome in outcomes) else BROKEN
    if junit is not None:
        write_junit(junit, clock.run(), map(_case_of, sorted(outcomes, key=attrgetter("kind"))))
    if as_json:
        write_document(MartsAnswer(exit_code=code, run=clock.run(), results=outcomes))
        raise typer.Exit(code)
    counts = Counter(outcome.kind for outcome in outcomes if outcome.is_good)
    for outcome in outcomes:
        if not outcome.is_good:
            out.print(f"[red]failed[/] {outcome.kind} {outcome.name}: {escape(outcome.message)}")
    tests = counts["test"] + counts["unit_test"]
    out.print(f"{counts['model']} models and {tests} tests passed; tables in {settings.warehouse / 'marts'}")
    if with_docs:
        out.print(f"documentation: {folder / 'docs' / 'static_index.html'}", soft_wrap=True)
    raise typer.Exit(code)


def _repeated(option: str, values: list[str] | None) -> Iterator[str]:
    for value in values or ():
        yield from (option, value)


def _variables(text: str | None) -> Mapping[str, Any]:
    """Return the variables of `--vars`.

    Raises:
        InvalidUsage: the text is not a JSON object.
    """
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidUsage(f"--vars is {text!r}; it must be a JSON object of variables ({error})") from None


def _case_of(outcome: "BuildResult") -> Case:
    status: Status = "ok" if outcome.is_good else "skipped" if outcome.status == "skipped" else "broken"
    details = "" if outcome.is_good else outcome.message or outcome.status
    return Case(outcome.kind, outcome.name, f"{outcome.kind} {outcome.name}", status, details)
