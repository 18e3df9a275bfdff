"""Docstrings keep their word: examples run, and whoever raises says so."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("model", "wakeroll", "pipeline")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
NOT_ERRORS = frozenset({"typer.Exit", "KeyboardInterrupt", "LookupError"})
"""How a command ends, and what a caller cannot cause."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in FILES if ">>> " in path.read_text(encoding="utf-8")], ids=name_of)
def test_examples_run(path):
    module = importlib.import_module(name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."))

    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_whoever_raises_says_so(path):
    """Commands are left out: their docstrings are help texts, and each error is a sentence for the user."""
    if name_of(path).startswith("pipeline/wakeroll_pipeline/cli/"):
        return
    silent = [
        f"{node.name}: {', '.join(sorted(errors))}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
        if (errors := _raised(node))
        and not any(word in (ast.get_docstring(node) or "") for word in ("Raises", "Raise `"))
    ]

    assert silent == []


def _raised(function: ast.FunctionDef) -> set[str]:
    """Return the names of the errors that a function itself raises."""
    raised = [node.exc for node in ast.walk(function) if isinstance(node, ast.Raise) and node.exc is not None]
    return {ast.unparse(error).partition("(")[0] for error in raised} - NOT_ERRORS
