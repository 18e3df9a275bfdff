"""The tables of docs that have an answer for each call of another client, and which test shows that it is true."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

Test = TypeVar("Test", bound=Callable[..., object])

DOCS = Path(__file__).parents[2] / "docs"
NOTHING = "none"
"""In the column of ours: there is nothing of the kind."""


class Row(NamedTuple):
    """What a page says about one call."""

    theirs: str
    ours: str
    differs: str


def answers(*calls: str) -> Callable[[Test], Test]:
    """Note that a test shows what the page says about these calls."""

    def note(test: Test) -> Test:
        test.__dict__["answers"] = calls
        return test

    return note


def rows_of(page: str, heading: str) -> dict[str, Row]:
    """Return the table below a heading of a page, by the names of their calls; one row may have several."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, Row] = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            for call in re.findall(r"`([^`]+)`", cells[0]):
                assert call not in found, f"{call} has two rows in {page}"
                found[call] = Row(call, cells[1], cells[2])
    return found


def check_table(rows: dict[str, Row], theirs: Iterable[str], tests: ModuleType) -> None:
    """Check that each of their calls has a row, and each row a test, or a reason why there is nothing of the kind."""
    names = {call.removesuffix("()") for call in theirs}
    shown = {call for test in vars(tests).values() for call in getattr(test, "answers", ())}
    assert names - rows.keys() == set(), "calls of theirs without a row"
    assert rows.keys() - names == set(), "rows about calls that they do not have"
    assert shown - rows.keys() == set(), "tests of calls that have no row"
    assert {call for call, row in rows.items() if row.ours == NOTHING and len(row.differs) < 20} == set(), "no reason"
    assert {call for call, row in rows.items() if row.ours != NOTHING} - shown == set(), "rows without a test"
