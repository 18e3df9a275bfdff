"""The `sql` command: read-only SQL on the tables, views and marts of a home."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from wakeroll.errors import InvalidUsage
from wakeroll_model.rows import TABLES
from wakeroll_pipeline.cli.open_ledger import ledger
from wakeroll_pipeline.cli.options import EngineName, TableOptions, TablesAt
from wakeroll_pipeline.cli.output import Answer, Output, write_csv, write_json, write_table
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.view_queries import VIEWS
from wakeroll_pipeline.storage.place import Place

if TYPE_CHECKING:
    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger

# Messages go to standard error, because standard output may be redirected to a file of rows.
aside = Output(stderr=True, highlight=False, soft_wrap=True)

Question = Annotated[
    str | None, typer.Argument(metavar="[QUERY]", help="One SQL statement; - reads it from standard input.")
]
File = Annotated[
    Path | None, typer.Option("--file", metavar="FILE", help="File that holds the statement, instead of QUERY.")
]
Format = Annotated[
    Literal["table", "csv", "json"],
    typer.Option("--format", help="Output format of the rows; json writes one object per line."),
]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=10_000_000, help="Maximum number of rows to show.")
]
Version = Annotated[
    str | None,
    typer.Option(
        "--version",
        metavar="TABLE=N",
        help="Read TABLE at Delta version N, and the other tables as of the same moment; default: newest.",
    ),
]


def sql(
    deployment: TableOptions,
    question: Question = None,
    file: File = None,
    format: Format = "table",  # noqa: A002 - the option's name
    limit: Limit = 1_000,
    version: Version = None,
    at: TablesAt = None,
    engine: EngineName = None,
) -> None:
    """Query the tables, the views, and the marts that `wakeroll marts` has built; read-only, in the engine's SQL.

    [dim]wakeroll sql "select * from groups"[/]

    [dim]wakeroll sql "describe assignments"[/]

    [dim]wakeroll sql --file question.sql --format csv > answer.csv[/]

    [dim]wakeroll sql "select count(*) from offsets" --version offsets=3[/]

    [dim]wakeroll sql "select * from current_assignments" --at 2026-07-01T03:00:00Z[/]

    Times are UTC.  The marts are not available with --version or --at.
    """
    asked = _question(question, file)
    if version is not None and at is not None:
        raise InvalidUsage(
            "--version and --at exclude each other: --version selects by one table, --at by time; use only one of them"
        )
    then = None if version is None else _version(version)
    settings = deployment.settings()
    has_marts = (then, at) == (None, None)

    def needs(opened: "DuckLedger") -> int:
        if has_marts:
            opened.open_marts()
        return opened.bytes_for(asked)

    with ledger(settings, aside, engine, version=then, at_ms=at, needs=needs) as opened:
        answer = _ask(opened, settings.warehouse if has_marts else None, asked, limit)
    {"table": write_table, "csv": write_csv, "json": write_json}[format](answer)
    if answer.has_more:
        aside.print(f"wakeroll: these are the first {limit} rows, and there are more; --limit N shows N rows")


def _ask(opened: Ledger, marts_of: Place | None, asked: str, limit: int) -> Answer:
    """Run a query on a ledger and on the marts of a warehouse, if one is named."""
    names = [*TABLES, *VIEWS]
    if opened.engine == "spark":
        from wakeroll_pipeline.cli.sql_in_spark import ask_spark
        from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
        from wakeroll_pipeline.questions.marts import open_marts

        assert isinstance(opened, SparkLedger)
        names += open_marts(opened.spark, marts_of) if marts_of else []
        return ask_spark(opened.spark, asked, limit, names)
    from wakeroll_pipeline.cli.sql_in_duckdb import ask_duckdb
    from wakeroll_pipeline.ledger.duck_ledger import DuckLedger

    assert isinstance(opened, DuckLedger)
    opened.add_comments()
    names += opened.open_marts() if marts_of else []
    return ask_duckdb(opened, asked, limit, names)


def _question(given: str | None, file: Path | None) -> str:
    if (given is None) == (file is None):
        raise InvalidUsage(
            'name one query: as an argument, such as "select * from groups", with --file, or - for standard input'
        )
    if file is not None:
        return file.read_text(encoding="utf-8", errors="replace")
    return sys.stdin.read() if given == "-" else str(given)


def _version(text: str) -> tuple[str, int]:
    table, _, number = text.partition("=")
    if table not in TABLES or not re.fullmatch(r"[0-9]{1,18}", number):
        raise InvalidUsage(
            f"--version is {text!r}; it must be a table and its Delta version, such as offsets=3; the tables are: "
            f"{', '.join(TABLES)}"
        )
    return table, int(number)
