"""The `check` command: data quality rules on the tables and views."""

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.table import Table

from wakeroll.epoch_ms import now_ms
from wakeroll.errors import InvalidUsage, missing_extra
from wakeroll_model.chain import heads_of_text, text_of_heads
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.cli.ci_reports import (
    Case,
    JUnitFile,
    RunClock,
    RunName,
    Status,
    reported_failure,
    write_junit,
)
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS, NOT_CHECKED
from wakeroll_pipeline.cli.json_answers import CheckAnswer, RuleRow
from wakeroll_pipeline.cli.open_ledger import announce, ledger, reading, session, warehouse_of
from wakeroll_pipeline.cli.options import AsJson, EngineName, NamedBrokerOptions, TablesAt, of_brokers
from wakeroll_pipeline.cli.output import Output, write_document
from wakeroll_pipeline.cli.process_logs import complain
from wakeroll_pipeline.cli.published_witness import Witness
from wakeroll_pipeline.ledger.ledger import UnreadableTable
from wakeroll_pipeline.ledger.stored_marts import DAILY_FACTS
from wakeroll_pipeline.ledger.view_queries import Engine
from wakeroll_pipeline.questions.quality.lean_imports import lean_imports
from wakeroll_pipeline.questions.tables_looked_at import TableLookedAt, tables_looked_at
from wakeroll_pipeline.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from wakeroll_model.chain import Head
    from wakeroll_pipeline.questions.quality.chain_check import ChainCheck
    from wakeroll_pipeline.questions.quality.expectation_suites import Gate
    from wakeroll_pipeline.questions.quality.ordered_rows import Broken
    from wakeroll_pipeline.questions.quality.rule import Rule, RuleResult

out = Output(highlight=False)

Version = Annotated[
    int | None,
    typer.Option(
        "--version",
        metavar="N",
        min=0,
        help="Check --table at Delta version N, and the other tables as of the same moment; default: newest.",
    ),
]
OnlyTable = Annotated[
    str | None,
    typer.Option("--table", metavar="TABLE", help="Check the rules of this table or view only; default: all rules."),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="LINE",
        help="Prove that the tables continue a history of which this is the newest line, as an earlier `check`, the "
        "log or metrics of `run`, or an auditor has it: TABLE:NUMBER:HASH,..., with 13 digits of a hash or more.",
    ),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="LINE",
        help="Check the rows after this line only, which an earlier `check` has printed, and that the line is in the "
        "chain; rules that compare them with older rows are skipped.",
    ),
]
Docs = Annotated[
    Path | None,
    typer.Option("--docs", metavar="FOLDER", help="Folder for Data Docs (HTML); default: quality, in --home."),
]
NoDocs = Annotated[
    bool,
    typer.Option("--no-docs", help="Write no Data Docs; in DuckDB, Great Expectations is not needed then."),
]


class CheckOptions(NamedBrokerOptions, frozen=True, kw_only=True):
    """The options of `check`, which reads from brokers only if --bootstrap names some."""

    bootstrap: Annotated[
        str | None,
        of_brokers(
            "Compare the chains with the lines that the recorder published at these Kafka brokers; default: none."
        ),
    ] = None


def check(
    deployment: CheckOptions,
    version: Version = None,
    at: TablesAt = None,
    table: OnlyTable = None,
    against: Against = None,
    since: Since = None,
    docs: Docs = None,
    no_docs: NoDocs = False,
    as_json: AsJson = False,
    junit: JUnitFile = None,
    run_name: RunName = None,
    engine: EngineName = None,
) -> None:
    """Check the data quality rules, on the newest or past versions of the tables.

    The exit code is 1 if a rule is broken, and 3 if no rule is broken and some could not be checked.
    """
    from wakeroll_pipeline.questions.quality.chain_check import ChainCheck

    if docs is not None and no_docs:
        raise InvalidUsage("--docs and --no-docs exclude each other; use only one of them")
    _refuse_wrong_tables(version, at, table)
    if since is not None and engine == "spark":
        raise InvalidUsage("--since has no --engine spark: it reads a small part of the tables")
    chains = ChainCheck(_heads_of("--against", against), _heads_of("--since", since))
    settings = deployment.settings()
    warehouse_of(settings)
    chosen: Engine = engine or "duckdb"
    if chosen == "spark" or not no_docs:
        try:
            with lean_imports() if chosen == "duckdb" else nullcontext():
                from wakeroll_pipeline.questions.quality.expectation_suites import Gate
        except ModuleNotFoundError as missing:
            raise missing_extra("`check`", "quality", missing) from None
    # The records are read before the tables, whose newest lines are stored before they are published.
    witness = Witness(settings if deployment.bootstrap is not None and table in (None, "chain") else None)
    asked = None if version is None or table is None else (table, version)
    clock = RunClock("check", run_name, chosen, settings.warehouse)
    folder = None if no_docs else docs or settings.work_folder / "quality"
    names = None if table is None else {table}
    page = None
    with reported_failure(clock, as_json=as_json, junit=junit):
        gate = None
        if chosen == "spark":
            outcomes, looked_at, gate = _check_in_spark(
                settings, partial(Gate, folder, "spark", clock.name), chains, asked, at, names
            )
        else:
            outcomes, looked_at = _check_in_duckdb(settings, chains, asked, at, names)
        is_whole = (asked, at, since) == (None, None, None)
        outcomes = witness.added_to(_with_facts(settings, outcomes, names, is_whole=is_whole))
    if folder is not None:
        with out.status("writing Data Docs"):
            if gate is None:
                gate = Gate(folder, "duckdb", clock.name)
                gate.record(outcomes, looked_at)
            page = gate.write_docs()
            gate.forget_results(now_ms() - settings.keep_results_ms)
    broken = [outcome for outcome in outcomes if outcome.broken]
    left = [outcome for outcome in outcomes if outcome.not_checked]
    code = BROKEN if broken else NOT_CHECKED if left else HOLDS
    if junit is not None:
        write_junit(junit, clock.run(), map(_case_of, outcomes), looked_at)
    line = text_of_heads(chains.heads)
    if as_json:
        write_document(
            CheckAnswer(
                exit_code=code,
                run=clock.run(),
                counts=_counts(outcomes),
                tables=looked_at,
                rules=[_rule_row(one) for one in outcomes],
                data_docs=None if page is None else str(page),
                line=line or None,
                notes=chains.notes,
                published=witness.sentence or None,
            )
        )
    else:
        is_past = (asked, at) != (None, None)
        _print(outcomes, page, [f"{one.table} {one.version}" for one in looked_at if is_past])
        for note in (*chains.notes, *_line_to_keep(line)):
            out.print(note, soft_wrap=True)
        witness.print_to(out)
    for why in dict.fromkeys(outcome.not_checked for outcome in left):
        complain(why)
    raise typer.Exit(code)


def _line_to_keep(line: str) -> "Sequence[str]":
    return [f"newest line of the chain, to be kept elsewhere: {line}"] if line else []


def _refuse_wrong_tables(version: int | None, at: int | None, table: str | None) -> None:
    """Reject options that name no table, or two moments.

    Raises:
        InvalidUsage: the message names the tables that are valid.
    """
    from wakeroll_pipeline.questions.quality.all_rules import all_rules

    if version is not None and (at is not None or table not in TABLES):
        raise InvalidUsage(f"--version needs --table and excludes --at; --table must be one of {', '.join(TABLES)}")
    known = {DAILY_FACTS} | {rule.table for rules in all_rules().values() for rule in rules}
    if table is not None and table not in known:
        raise InvalidUsage(f"no table or view {table!r} has rules; it must be one of: {', '.join(sorted(known))}")


def _heads_of(option: str, text: str | None) -> "Sequence[Head]":
    if text is None:
        return ()
    try:
        return heads_of_text(text)
    except ValueError as error:
        raise InvalidUsage(f"{option}: {error}") from None


def _print(outcomes: "Sequence[RuleResult]", page: Path | None, versions: "Sequence[str]") -> None:
    broken = [outcome for outcome in outcomes if outcome.broken]
    left = sum(bool(outcome.not_checked) for outcome in outcomes)
    out.print(_rules_table(outcomes))
    if broken:
        out.print(_rows_table(broken))
    where = f" of {', '.join(versions)}" if versions else ""
    parts = [f"[red]{len(broken)} broken[/]"] if broken else []
    parts += [f"[red]{left} could not be checked[/]"] if left else []
    skipped = Counter(one.skipped for one in outcomes if one.skipped)
    held = "[green]all others hold[/]" if skipped else "[green]all hold[/]"
    counts = ", ".join([*(parts or [held]), *(f"{count} skipped: {why}" for why, count in skipped.items())])
    out.print(f"{len(outcomes)} rules{where}: {counts}{f'; Data Docs: {page}' if page else ''}", soft_wrap=True)


def _counts(outcomes: "Sequence[RuleResult]") -> Mapping[str, int]:
    counts = Counter(_status_of(one) for one in outcomes)
    return {"rules": len(outcomes), **{status: counts[status] for status in get_args(Status)}}


def _rule_row(one: "RuleResult") -> RuleRow:
    return RuleRow(
        name=one.rule.name,
        suite=one.rule.suite,
        table=one.rule.table,
        sentence=one.rule.says,
        status=_status_of(one),
        broken=one.broken,
        rows=one.rows,
        looked_at=one.looked_at,
        reason=one.not_checked or one.skipped,
    )


def _status_of(one: "RuleResult") -> Status:
    return "broken" if one.broken else "not_checked" if one.not_checked else "skipped" if one.skipped else "ok"


def _case_of(one: "RuleResult") -> Case:
    rows = [", ".join(f"{name} {value}" for name, value in row.items()) for row in one.rows]
    broken = "\n".join([f"{one.broken} rows break it; the first:", *rows]) if one.broken else ""
    details = broken or one.not_checked or one.skipped
    return Case(one.rule.suite, one.rule.name, one.rule.says, _status_of(one), details)


def _with_facts(
    settings: Settings, outcomes: "Sequence[RuleResult]", names: set[str] | None, *, is_whole: bool
) -> "Sequence[RuleResult]":
    """Return results with that of the daily facts, if it is requested and all newest rows are checked."""
    from wakeroll_pipeline.questions.quality.facts_check import check_facts
    from wakeroll_pipeline.questions.quality.rule import inserted

    if not is_whole or (names is not None and DAILY_FACTS not in names):
        return outcomes
    with out.status("comparing the daily facts"), reading(warehouse_of(settings)):
        result = check_facts(settings.warehouse)
    return outcomes if result is None else inserted(outcomes, result)


def _check_in_duckdb(
    settings: Settings,
    chains: "ChainCheck",
    version: tuple[str, int] | None,
    at_ms: int | None,
    names: set[str] | None,
) -> "tuple[Sequence[RuleResult], Sequence[TableLookedAt]]":
    with ledger(settings, out, "duckdb", version, at_ms) as opened:
        from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
        from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb

        assert isinstance(opened, DuckLedger)
        if names is None and not chains.since:
            announce(opened.opened.rows, _US_PER_ROW)
        outcomes = check_in_duckdb(opened, names, chains)
        return outcomes, tables_looked_at(opened)


_US_PER_ROW = 25
"""CPU time of all rules per row of the tables (docs/performance.md)."""


def _check_in_spark(
    settings: Settings,
    new_gate: "Callable[[], Gate]",
    chains: "ChainCheck",
    version: tuple[str, int] | None,
    at_ms: int | None,
    names: set[str] | None,
) -> "tuple[Sequence[RuleResult], Sequence[TableLookedAt], Gate | None]":
    """Check in Spark; if a table cannot be read, in DuckDB, without a gate.

    Spark evaluates the rules that compare rows in one job, which fails as a whole; with DuckDB, only the rules that
    read the damaged table fail.
    """
    lines = list(chains.heads)
    try:
        return _checked_by_spark(settings, new_gate, chains, version, at_ms, names)
    except UnreadableTable as damage:
        complain(f"{damage}; DuckDB checks the rules that do not read it")
    chains.heads[:] = lines
    return *_check_in_duckdb(settings, chains, version, at_ms, names), None


def _checked_by_spark(
    settings: Settings,
    new_gate: "Callable[[], Gate]",
    chains: "ChainCheck",
    version: tuple[str, int] | None,
    at_ms: int | None,
    names: set[str] | None,
) -> "tuple[Sequence[RuleResult], Sequence[TableLookedAt], Gate]":
    warehouse = warehouse_of(settings)
    with session(settings, out, for_minutes=True) as spark, reading(warehouse):
        from wakeroll_pipeline.ledger.duck_ledger import duck_ledger, whole_versions
        from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
        from wakeroll_pipeline.ledger.tables import open_views
        from wakeroll_pipeline.ledger.time_travel import versions_when
        from wakeroll_pipeline.questions.quality.all_rules import check as check_in_spark

        versions = versions_when(warehouse, version, at_ms) or whole_versions(warehouse)
        open_views(spark, warehouse, versions)
        gate = new_gate()  # Great Expectations starts a session of its own, without Delta, if there is none

        # Rows are hashed one after the other, so Spark would add nothing but its price.
        def broken_chains(rules: "Collection[Rule]") -> "list[Broken]":
            with duck_ledger(warehouse, versions) as ledger:
                return [one for table in chains.tables_of(rules) for one in chains.broken(ledger, table)]

        outcomes = [
            replace(one, skipped=chains.skipped.get(one.rule.name, one.skipped))
            for one in check_in_spark(spark, gate, names, broken_chains)
        ]
        # Great Expectations reports an error of Spark as a broken rule.
        if failures := [one.failure for one in outcomes if one.failure]:
            from wakeroll_pipeline.ledger.table_damage import damage_behind

            if (damage := damage_behind(RuntimeError("\n".join(failures)), warehouse, versions)) is not None:
                raise damage
        return outcomes, tables_looked_at(SparkLedger(spark, versions)), gate


def _rules_table(outcomes: "Sequence[RuleResult]") -> Table:
    """Return a table with each rule that compares rows, is broken or was not checked; count the others per table."""
    table = Table(title="rules")
    table.add_column("table or view")
    table.add_column("rule")
    table.add_column("rows that break it", justify="right")
    shown = [one for one in outcomes if one.rule.compares or one.broken]
    rest = [one for one in outcomes if not (one.rule.compares or one.broken)]
    for (name, is_checked), count in Counter((one.rule.table, not one.not_checked) for one in rest).items():
        result = "[green]ok[/]" if is_checked else _NOT_CHECKED
        table.add_row(name, f"declared columns: types, nulls, values ({count} rules)", result)
    for one in shown:
        table.add_row(one.rule.table, one.rule.says, _SAID.get(_status_of(one), f"[red]{one.broken}[/]"))
    return table


_NOT_CHECKED = "[red]not checked[/]"
_SAID: Mapping[Status, str] = {"ok": "[green]ok[/]", "skipped": "[yellow]skipped[/]", "not_checked": _NOT_CHECKED}
"""Status of a rule -> its text; for a broken rule it is the number of rows."""


def _rows_table(broken: "Sequence[RuleResult]") -> Table:
    table = Table(title="the first rows that break a rule", show_lines=True)
    for name in ("rule", "row", "found", "expected"):
        table.add_column(name)
    for one in broken:
        for row in one.rows:
            found = row.get("found", row.get(one.rule.column))
            key = {name: value for name, value in row.items() if name not in ("at", "found", "expected")}
            where = row.get("at") or ", ".join(f"{name} {value}" for name, value in key.items())
            table.add_row(one.rule.name, str(where), str(found), row.get("expected") or one.rule.says)
    return table
