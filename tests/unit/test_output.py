"""Tables of the command line: never cut in a pipe, fitted to a terminal, without colours if nobody wants them."""

import io

import pytest
from rich.table import Table

from wakeroll_pipeline.cli.output import Output

NAME = "orders-of-all-countries-and-years-" * 5


def printed(**options: object) -> str:
    table = Table()
    for name in ("group", "queue", "owner"):
        table.add_column(name)
    table.add_row(NAME, NAME, f"[red]{NAME}[/]")
    file = io.StringIO()
    Output(file=file, **options).print(table)
    return file.getvalue()


def test_a_pipe_has_no_width(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("COLUMNS", raising=False)

    said = printed()

    assert said.count(NAME) == 3
    assert "…" not in said


def test_a_terminal_has_the_width_that_it_has(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")

    assert max(map(len, printed(force_terminal=True, color_system=None).splitlines())) <= 40


def test_columns_sets_the_width_of_a_pipe(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "60")

    assert max(map(len, printed().splitlines())) <= 60


def test_no_color_is_obeyed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    without = printed(force_terminal=True)
    monkeypatch.delenv("NO_COLOR")

    assert "\x1b[31m" not in without
    assert "\x1b[31m" in printed(force_terminal=True, color_system="standard")
