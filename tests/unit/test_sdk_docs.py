"""docs/sdk.md has everything that an application can import, and its programs are programs."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import wakeroll
import wakeroll.testing

PAGE = (Path(__file__).parents[2] / "docs" / "sdk.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
CLASSES = (
    wakeroll.Consumer,
    wakeroll.Producer,
    wakeroll.Admin,
    wakeroll.DeadLetters,
    wakeroll.testing.MemoryBroker,
    wakeroll.testing.Member,
)


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
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if alias.name not in module.__all__] == []
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            name = name.removeprefix("Async")  # its arguments are those of Consumer
            known = [getattr(kind, name) for kind in CLASSES if hasattr(kind, name)] or [getattr(wakeroll, name, None)]
            named = {keyword.arg for keyword in node.keywords if keyword.arg}
            if named and known[0] is not None and name not in ("configure", "join"):
                assert any(named <= set(inspect.signature(one).parameters) for one in known), (name, named)


def test_the_test_of_a_handler_passes():
    """It needs no broker, so it is run."""
    [program] = [program for program in PROGRAMS if "MemoryBroker" in program]
    names: dict[str, object] = {}
    exec(compile(program, "docs/sdk.md", "exec"), names)

    names["test_an_order_has_an_invoice"]()  # type: ignore[operator]


def test_every_example_is_listed():
    names = [f"`examples/{path.name}`" for path in (Path(__file__).parents[2] / "examples").glob("*.py")]

    assert [name for name in names if name not in PAGE] == []
