"""docs/architecture.md: its paths exist, and its drawing of folders shows the imports of `pipeline/`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "pipeline" / "wakeroll_pipeline"
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


def members_in(text: str) -> list[tuple[str, str]]:
    """Return each name that a text places in a module, and the module: "`Class.method` in `path`", or the reverse."""
    named = re.findall(r"`(\w+(?:\.\w+)?)` in `([\w./]+\.py)`", text)
    return named + [(name, path) for path, name in re.findall(r"`([\w./]+\.py)`, in `(\w+(?:\.\w+)?)`", text)]


def linked_in(text: str) -> list[str]:
    """Return the pages that a text links to, without their anchors."""
    return re.findall(r"\]\(([\w./-]+\.md)(?:#[\w-]+)?\)", text)


def names_of(module: str) -> set[str]:
    """Return the names that a module defines: `name`, `Class`, and `Class.method`."""
    names = set[str]()
    for node in ast.parse(module).body:
        names |= set(_defined_by(node))
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for inner in node.body for name in _defined_by(inner)}
    return names


def _defined_by(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def drawn() -> set[tuple[str, str]]:
    return set(re.findall(r"^    (\w+) --> (\w+)$", PAGE, flags=re.MULTILINE))


def imported() -> set[tuple[str, str]]:
    """Return each pair of folders of `pipeline/` of which the first imports the second."""
    folders = {path.name for path in PIPELINE.iterdir() if path.is_dir()}
    return {
        (path.relative_to(PIPELINE).parts[0], module)
        for path in PIPELINE.rglob("*/*.py")
        for module in modules_in(ast.parse(path.read_text(encoding="utf-8")))
        if module in folders - {path.relative_to(PIPELINE).parts[0]}
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
        yield from (name.split(".")[1] for name in names if name.startswith("wakeroll_pipeline."))


def test_every_path_of_the_page_exists():
    assert len(paths_in(PAGE)) >= 60
    assert [path for path in paths_in(PAGE) if not (ROOT / path).exists()] == []


def test_the_exam_has_thirty_questions_each_with_a_file():
    assert len(exam()) >= 30
    assert [row for row in exam() if len(row) != 2 or not row[0].endswith("?") or not re.search(r"[`\]]", row[1])] == []


def test_every_answer_of_the_exam_exists():
    """A path, a linked page or a method that was renamed would send a newcomer to nothing."""
    answers = [answer for _, answer in exam()]
    paths = [path for answer in answers for path in paths_in(answer)]
    pages = [page for answer in answers for page in linked_in(answer)]
    members = [member for answer in answers for member in members_in(answer)]

    assert [answer for answer in answers if not paths_in(answer) and not linked_in(answer)] == []
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [page for page in pages if not (ROOT / "docs" / page).is_file()] == []
    assert len(members) >= 3
    assert [(name, path) for name, path in members if name not in names_of((ROOT / path).read_text())] == []


def test_every_class_member_of_the_exam_has_its_module():
    """A name without a module would not be checked by the test above."""
    answers = " ".join(answer for _, answer in exam())
    dotted = re.findall(r"`([A-Z]\w+\.\w+)`", answers)

    assert dotted
    assert sorted(set(dotted) - {name for name, _ in members_in(answers)}) == []


def test_names_of_a_module_are_found():
    """If none were found, each name of the exam would be reported as missing."""
    module = "LIMIT = 1\nKEY: str = 'a'\nclass A:\n    size: int = 0\n    def f(self): ...\ndef g(): ...\n"

    assert names_of(module) == {"LIMIT", "KEY", "A", "A.size", "A.f", "g"}


def test_no_question_is_asked_twice():
    questions = [question for question, _ in exam()]

    assert sorted(set(questions)) == sorted(questions)


def test_the_drawing_shows_the_imports_of_folders():
    assert drawn() == imported()


@pytest.mark.parametrize("path", ["model/lives.py", "pipeline/wakeroll_pipeline/ledger/nothing.sql", "docs/none.md"])
def test_a_path_that_does_not_exist_is_found(path):
    """A pattern that matches no path would accept every page."""
    [found] = paths_in(f"See `{path}`.")

    assert not (ROOT / found).exists()
