"""marts: the people's tables, made anew from the ledger."""

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from pipeline.cli.open_ledger import session, warehouse_of
from pipeline.cli.options import ConfigFile, Home, settings_of

out = Console(highlight=False, soft_wrap=True)

FullRefresh = Annotated[bool, typer.Option("--full-refresh", help="Make the tables that grow anew, from all there is.")]


def marts(full_refresh: FullRefresh = False, home: Home = None, config: ConfigFile = None) -> None:
    """Make tables for people of the ledger (dbt): who owned what, who is behind, what a rebalance cost; ask every rule.

    Exit code 1 if a table could not be made, or a rule is broken.
    """
    from pipeline.questions.marts import build, ensure_dbt

    ensure_dbt()
    settings = settings_of(config, home=home)
    warehouse = warehouse_of(settings)
    with session(settings, out, for_minutes=True):
        outcomes = build(warehouse, settings.logs, *(["--full-refresh"] if full_refresh else []))
    counts = Counter(outcome.kind for outcome in outcomes if outcome.is_good)
    for outcome in outcomes:
        if not outcome.is_good:
            out.print(f"[red]wrong[/] {outcome.kind} {outcome.name}: {escape(outcome.message)}")
    out.print(f"{counts['model']} models and {counts['test']} tests are well; tables in {settings.warehouse / 'marts'}")
    raise typer.Exit(0 if all(outcome.is_good for outcome in outcomes) else 1)
