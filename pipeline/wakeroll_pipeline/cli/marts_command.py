"""The `marts` command: build and test the dbt models on the ledger."""

from collections import Counter
from functools import partial
from typing import Annotated

import typer
from rich.markup import escape

from wakeroll_pipeline.cli.open_ledger import reading, session, warehouse_of
from wakeroll_pipeline.cli.options import ConfigFile, EngineName, Home, settings_of
from wakeroll_pipeline.cli.output import Output

out = Output(highlight=False, soft_wrap=True)

FullRefresh = Annotated[
    bool,
    typer.Option(
        "--full-refresh", help="Rebuild the incremental tables from all rows; default: add the new rows only."
    ),
]


def marts(
    full_refresh: FullRefresh = False, engine: EngineName = "duckdb", home: Home = None, config: ConfigFile = None
) -> None:
    """Build the dbt marts (ownership, lag, cost of rebalances, ...) from the ledger, and run all dbt tests.

    Both engines build the same tables, and each continues those of the other.  The exit code is 1 if a model fails or a
    test finds rows.
    """
    from wakeroll_pipeline.questions.marts import build, ensure_dbt

    ensure_dbt(engine)
    settings = settings_of(config, home=home)
    warehouse = warehouse_of(settings)
    run = partial(build, warehouse, settings.logs, *(["--full-refresh"] if full_refresh else []), engine=engine)
    if engine == "spark":
        with session(settings, out, for_minutes=True), reading(warehouse):
            outcomes = run()
    else:
        with out.status("building"), reading(warehouse):
            outcomes = run()
    counts = Counter(outcome.kind for outcome in outcomes if outcome.is_good)
    for outcome in outcomes:
        if not outcome.is_good:
            out.print(f"[red]failed[/] {outcome.kind} {outcome.name}: {escape(outcome.message)}")
    out.print(f"{counts['model']} models and {counts['test']} tests passed; tables in {settings.warehouse / 'marts'}")
    raise typer.Exit(0 if all(outcome.is_good for outcome in outcomes) else 1)
