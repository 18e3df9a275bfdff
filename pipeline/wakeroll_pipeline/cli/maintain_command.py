"""The `maintain` command: upkeep of everything that grows, for a ledger that no process writes."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import missing_extra
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS, NOT_CHECKED
from wakeroll_pipeline.cli.open_ledger import reading, warehouse_of
from wakeroll_pipeline.cli.options import AsJson, NamedBrokerOptions
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.process_logs import complain
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.storage.cause_trees import in_one_line
from wakeroll_pipeline.storage.place import Place

if TYPE_CHECKING:
    from wakeroll_pipeline.jobs.maintain import Report

out = Output(highlight=False)

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what can be deleted and combined, and change nothing; needs no lock.")
]
NewestOnly = Annotated[
    bool,
    typer.Option(
        "--newest-only",
        help="Keep the newest version of each table only, instead of those of keep_versions_ms: `check --at` cannot go "
        "back then, and a query that runs meanwhile may fail.",
    ),
]


def maintain(
    deployment: NamedBrokerOptions,
    dry_run: DryRun = False,
    newest_only: NewestOnly = False,
    as_json: AsJson = False,
) -> None:
    """Delete what is old in tables, marts, Data Docs and checkpoints, and combine small files; `run` may be stopped.

    While a `run` is active, which maintains the tables itself, tables are skipped; during another `maintain`,
    everything is skipped. The exit code is 1 if a step failed, and 3 if a table cannot be read; the next call repeats
    such a step.
    """
    try:
        from wakeroll_pipeline.jobs.maintain import maintain as carry_out
        from wakeroll_pipeline.jobs.maintain import plan
    except ModuleNotFoundError as missing:
        raise missing_extra("`maintain`", "spark", missing) from None

    settings = deployment.settings()
    warehouse = warehouse_of(settings)
    with reading(warehouse):
        if dry_run:
            done = plan(settings, _forget_results)
        else:
            done = carry_out(settings, _forget_results, newest_only=newest_only)
    code = _code_of(done, warehouse)
    if as_json:
        write_document(
            {
                "exit_code": code,
                "dry_run": dry_run,
                "parts": done.parts,
                "skipped": done.skipped,
                "failures": [{"step": one.step, "why": in_one_line(one.error)} for one in done.failures],
            }
        )
        raise typer.Exit(code)
    if done.parts:
        out.print(_table(done, dry_run=dry_run))
    for one in done.skipped:
        out.print(f"skipped {one.part}: {one.why}", soft_wrap=True, markup=False)
    for failure in done.failures:
        complain(f"could not {failure.step}: {in_one_line(failure.error)}")
    if dry_run:
        out.print("nothing has changed; repeat the command without --dry-run")
    raise typer.Exit(code)


def _forget_results(folder: Path, before_ms: int) -> None:
    """Delete the results of `check` from before a moment, in the folders of both engines."""
    try:
        from wakeroll_pipeline.questions.quality.expectation_suites import Gate
    except ModuleNotFoundError as missing:
        logging.getLogger("wakeroll").warning("old results of `check` stay: %s is not installed here", missing.name)
        return
    for engine in ("duckdb", "spark"):
        if (folder / engine).exists():
            Gate(folder, engine).forget_results(before_ms)


def _code_of(done: "Report", warehouse: Place) -> int:
    """Return the exit code; a table that cannot be read has another one than other failures."""
    from wakeroll_pipeline.ledger.table_damage import damage_behind

    if not done.failures:
        return HOLDS
    errors = [failure.error for failure in done.failures]
    is_damage = any(isinstance(one, UnreadableTable) or damage_behind(one, warehouse) is not None for one in errors)
    return NOT_CHECKED if is_damage else BROKEN


def _table(done: "Report", *, dry_run: bool) -> Table:
    table = Table()
    table.add_column("part")
    table.add_column("kind")
    for name in ("files before", "files after", "bytes before", "bytes after"):
        table.add_column(name, justify="right")
    if dry_run:
        table.add_column("would also")
    for one in done.parts:
        figures = (one.files_before, one.files_after, one.bytes_before, one.bytes_after)
        also = []
        if one.small_files:
            also.append(f"combine {one.small_files} files")
        if one.rows_before_ms is not None:
            also.append(f"delete rows before {EpochMs(one.rows_before_ms)}")
        table.add_row(one.name, one.kind, *(f"{figure:,}" for figure in figures), *([", ".join(also)] * dry_run))
    return table
