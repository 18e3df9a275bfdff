"""What type checkers know about the public API; mypy reads `typed_application` with all other modules."""

import inspect
import json
import sys
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest

import wakeroll
from tests.support.running_processes import ROOT, run_process

APPLICATION = ROOT / "tests" / "support" / "typed_application.py"
SAME = ("run", "consume", "poll", "fetch", "seek", "lag", "committed", "first_offset", "end_offset")


def test_pyright_accepts_an_application_and_finds_its_mistakes(tmp_path):
    """An ignored error that it does not find is an error: `reportUnnecessaryTypeIgnoreComment`."""
    rules = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "enableTypeIgnoreComments": False,
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": [str(APPLICATION)],
        "extraPaths": [str(ROOT), str(ROOT / "model")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(rules), encoding="utf-8")

    done = run_process(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    )

    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == 1
    assert [f"{one['range']['start']['line'] + 1}: {one['message']}" for one in found["generalDiagnostics"]] == []


@pytest.mark.parametrize("name", wakeroll.__all__)
def test_libraries_can_read_the_types_of_a_public_name(name):
    """Those that inject dependencies or generate documents read them at run time."""
    for function in _functions_of(getattr(wakeroll, name)):
        hints = get_type_hints(function)
        parameters = inspect.signature(function).parameters.keys() - {"self", "cls"}
        assert parameters <= hints.keys(), function


@pytest.mark.parametrize("name", ["__init__", *SAME])
def test_an_async_consumer_has_the_arguments_of_a_consumer(name):
    """Both are written out, so that help and editors show them: none may be missing, or have another default."""
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (wakeroll.AsyncConsumer, wakeroll.Consumer))

    assert [(one.name, one.default, one.kind) for one in ours.parameters.values()] == [
        (one.name, one.default, one.kind) for one in theirs.parameters.values()
    ]


def _functions_of(found: Any) -> Iterator[Any]:
    if not inspect.isclass(found):
        yield found
        return
    for name, member in inspect.getmembers(found):
        member = member.fget if isinstance(member, property) else member
        is_ours = getattr(member, "__module__", None) and member.__module__.startswith("wakeroll")
        if is_ours and (name == "__init__" or not name.startswith("_")):
            yield member
