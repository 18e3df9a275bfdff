"""The README's table beside other systems: its figures are those that docs/performance.md has."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
GROUPS = ("wakeroll", "Kafka, eager (range)", "Kafka, cooperative-sticky", "Kafka, KIP-848 (uniform)")
"""The measured columns, in order, by their names in docs/performance.md; all with its default settings."""
ROWS = {
    "kill → its queues go on, median": ("The fourth consumer is killed", "until its queues go on"),
    "repeated by a kill": ("The fourth consumer is killed", "repeated"),
    "join → first message, median": ("A fourth consumer joins three", "to its first message"),
}
"""Row of the README -> title and column of a table in docs/performance.md."""


def measured(title: str, column: str) -> list[str]:
    """Return a column of a table for the groups, of times the median."""
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    table = page.partition(f"\n**{title}**\n\n")[2].partition("\n\n")[0]
    head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
    cells = {line[0]: line[head.index(column)] for line in lines}
    return [re.sub(r" / .*(?= s$)", "", cells[group]) for group in GROUPS]


@pytest.mark.parametrize("row", ROWS)
def test_a_row_has_the_published_figures(row, request):
    """``pytest --rewrite`` copies them."""
    text = README.read_text(encoding="utf-8")
    [line] = re.findall(rf"^\| {re.escape(row)} \|.*$", text, flags=re.MULTILINE)
    cells = line.strip("| ").split(" | ")
    copied = " | ".join([row, *measured(*ROWS[row]), *cells[1 + len(GROUPS) :]])
    if request.config.getoption("--rewrite"):
        README.write_text(text.replace(line, f"| {copied} |"), encoding="utf-8")

    assert line.strip("| ") == copied
