"""The options that name a deployment: declared once, the same for every command that needs them."""

from collections.abc import Iterator

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from wakeroll_pipeline.cli.app import app_for
from wakeroll_pipeline.cli.options import BrokerOptions, LiveOptions, ServiceOptions, TableOptions, declared

WITHOUT = {
    "jars",
    "last-will",
    "acls",
    "keys new",
    "keys ensure",
    "keys public",
    "users add",
    "users grant",
    "users remove",
}
"""Commands that read neither brokers nor tables of a deployment."""


def commands(command: TyperCommand | TyperGroup, name: str = "") -> Iterator[tuple[str, TyperCommand]]:
    if isinstance(command, TyperGroup):
        for its_name, its in command.commands.items():
            yield from commands(its, f"{name} {its_name}".strip())
    else:
        yield name, command


COMMANDS = dict(commands(typer.main.get_command(app_for(()))))


def options_of(command: TyperCommand) -> set[str]:
    return {name for one in command.params for name in one.opts}


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - WITHOUT - {"users list"}))
def test_a_command_takes_the_whole_deployment_or_its_tables(name):
    """A shell alias with the options of a deployment fits every command that reads its brokers."""
    tables = {"--home", "--config"}
    brokers = {"--bootstrap", "--kafka-config", "--keys", "--prefix"}
    found = options_of(COMMANDS[name]) & (tables | brokers)

    assert found in (tables, tables | brokers)


def test_options_of_the_deployment_have_a_heading_of_their_own(wakeroll):
    """The options of the command itself would be lost among them."""
    _, shown, _ = wakeroll("describe", "--help")
    own, _, deployment = shown.partition(" Deployment ")

    assert "--holds" in own
    assert "--kafka-config" in deployment
    assert "--kafka-config" not in own


def test_a_command_receives_one_object_with_what_was_given():
    received: list[object] = []

    def show(deployment: BrokerOptions, group: str, loud: bool = False) -> None:
        received.append((deployment, group, loud))

    here = typer.Typer()
    here.command()(declared(show))
    here(["billing", "--home", "x", "--bootstrap", "a:1"], standalone_mode=False)

    assert received == [(BrokerOptions(home="x", bootstrap="a:1"), "billing", False)]


def test_an_option_counts_more_than_the_environment_and_that_more_than_the_file(tmp_path, monkeypatch):
    file = tmp_path / "wakeroll.toml"
    file.write_text('prefix = "file"\nhome = "file"\nbootstrap = "file:1"\n', encoding="utf-8")
    monkeypatch.setenv("WAKEROLL_HOME", "environment")
    monkeypatch.setenv("WAKEROLL_BOOTSTRAP", "environment:1")

    found = LiveOptions(config=file, bootstrap="option:1").settings(partitions=7)

    assert (found.prefix, found.home, found.bootstrap, found.partitions) == ("file", "environment", "option:1", 7)


@pytest.mark.parametrize("options", [TableOptions, BrokerOptions, ServiceOptions])
def test_without_a_run_in_the_home_no_broker_is_assumed(tmp_path, options):
    assert options(home=str(tmp_path)).settings().bootstrap == ""
