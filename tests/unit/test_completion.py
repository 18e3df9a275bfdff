"""Shell completion: names of commands, options and groups; silent about whatever goes wrong."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.support.delta_tables import write_tables
from tests.support.ledgers import a_day
from wakeroll_pipeline.cli import completed_names
from wakeroll_pipeline.cli.completed_names import groups_beginning_with


def completed(shell: str, line: str) -> list[str]:
    """Return what a shell is offered at the end of a line."""
    words = line.split(" ")
    environment = {"_WAKEROLL_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        environment |= {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    else:
        environment |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [sys.executable, "-m", "wakeroll_pipeline.cli"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_options_are_completed(shell):
    """The commands are offered without an import of their modules, the options from the module of the command."""
    assert any("explain" in one for one in completed(shell, "wakeroll ex"))
    assert any("--verdict" in one for one in completed(shell, "wakeroll groups --ver"))


def test_the_rest_of_a_line_of_subcommands_is_completed():
    assert completed("bash", "wakeroll keys pub") == ["public", "publish"]


def test_groups_come_from_the_tables(tmp_path, monkeypatch):
    """The limit of time is raised, because the machine of a test may be slow."""
    monkeypatch.setattr(completed_names, "ENOUGH_S", 60.0)
    write_tables(tmp_path / "warehouse", a_day())
    context = SimpleNamespace(params={"home": str(tmp_path), "bootstrap": None})

    assert groups_beginning_with(context, "") == ["audit", "billing"]
    assert groups_beginning_with(context, "b") == ["billing"]


@pytest.mark.parametrize("params", [{"home": "nowhere"}, {"config": "nowhere.toml"}, {"bootstrap": "127.0.0.1:1"}])
def test_what_is_not_there_has_no_names(params):
    assert groups_beginning_with(SimpleNamespace(params=params), "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown(wakeroll, shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    code, said, _ = wakeroll("--show-completion", shell)

    assert code == 0
    assert "_WAKEROLL_COMPLETE" in said
