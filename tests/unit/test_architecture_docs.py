"""docs/architecture.md: its paths exist, and its drawing of folders shows the imports of `pipeline/`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def paths_in(page: str) -> list[str]:
    """Return what looks like a path in backticks: a folder of the repository, a slash, and more."""
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    found = re.findall(r"`([\w.]+/[\w./-]*)`", page)
    return [path for path in found if path.partition("/")[0] in folders]


def exam() -> list[list[str]]:
    """Return the rows of the exam: a question, and the files to open."""
    [chapter] = re.findall(r"^## A newcomer's exam\n(.*?)(?=^## )", PAGE, flags=re.MULTILINE | re.DOTALL)
    rows = [line.strip("|").split(" | ") for line in chapter.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def drawn() -> set[tuple[str, str]]:
    return set(re.findall(r"^    (\w+) --> (\w+)$", PAGE, flags=re.MULTILINE))


def imported() -> set[tuple[str, str]]:
    """Return each pair of folders of `pipeline/` of which the first imports the second."""
    folders = {path.name for path in (ROOT / "pipeline").iterdir() if path.is_dir()}
    return {
        (path.relative_to(ROOT / "pipeline").parts[0], module)
        for path in (ROOT / "pipeline").rglob("*/*.py")
        for module in modules_in(ast.parse(path.read_text(encoding="utf-8")))
        if module in folders - {path.relative_to(ROOT / "pipeline").parts[0]}
    }


def modules_in(tree: ast.Module) -> Iterator[str]:
    """Yield the first part after `pipeline` of each imported name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("pipeline."))


def test_every_path_of_the_page_exists():
    assert len(paths_in(PAGE)) >= 60
    assert [path for path in paths_in(PAGE) if not (ROOT / path).exists()] == []


def test_the_exam_has_thirty_questions_each_with_a_file():
    assert len(exam()) >= 30
    assert [row for row in exam() if len(row) != 2 or not row[0].endswith("?") or not re.search(r"[`\]]", row[1])] == []


def test_no_question_is_asked_twice():
    questions = [question for question, _ in exam()]

    assert sorted(set(questions)) == sorted(questions)


def test_the_drawing_shows_the_imports_of_folders():
    assert drawn() == imported()


@pytest.mark.parametrize("path", ["model/lives.py", "pipeline/ledger/nothing.sql", "docs/none.md"])
def test_a_path_that_does_not_exist_is_found(path):
    """A pattern that matches no path would accept every page."""
    [found] = paths_in(f"See `{path}`.")

    assert not (ROOT / found).exists()
