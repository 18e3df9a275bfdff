"""docs/sdk.md has everything that an application can import, and its programs are programs."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import wakeroll

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
CLASSES = (wakeroll.Consumer, wakeroll.Producer, wakeroll.Admin, wakeroll.DeadLetters)


def test_every_public_name_is_explained():
    first = PAGE.partition("## Three ways")[0]

    assert [name for name in wakeroll.__all__ if f"`{name}`" not in first] == []


def test_every_method_is_mentioned():
    methods = {name for kind in CLASSES for name, _ in inspect.getmembers(kind, inspect.isfunction) if name[0] != "_"}

    assert sorted(name for name in methods if not re.search(rf"\b{name}\b", PAGE)) == []


def test_every_argument_of_run_is_mentioned():
    arguments = [
        name for name in inspect.signature(wakeroll.Consumer.run).parameters if name not in ("self", "handler")
    ]

    assert [name for name in arguments if not re.search(rf"\b{name}\b", PAGE)] == []


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_uses_what_there_is(program):
    """It compiles, imports public names, and passes arguments that exist."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert [alias.name for alias in node.names if alias.name not in wakeroll.__all__] == []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            known = [getattr(kind, name) for kind in CLASSES if hasattr(kind, name)] or [getattr(wakeroll, name, None)]
            named = {keyword.arg for keyword in node.keywords if keyword.arg}
            if named and known[0] is not None and name != "configure":
                assert any(named <= set(inspect.signature(one).parameters) for one in known), (name, named)
