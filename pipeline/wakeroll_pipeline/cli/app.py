"""The subcommands of `wakeroll`, and the handling of their errors."""

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage, WakerollError, missing_extra
from wakeroll.installed_version import installed_version
from wakeroll_model.feature_levels import UnknownLevel
from wakeroll_model.valid_keys import MissingKeys
from wakeroll_pipeline.cli import (
    acls_command,
    change_commands,
    check_command,
    dead_letter_command,
    describe_command,
    doctor_command,
    explain_command,
    groups_command,
    jars_command,
    keys_command,
    lag_command,
    last_will_command,
    local_commands,
    maintain_command,
    marts_command,
    repair_command,
    replay_command,
    reshard_command,
    restore_command,
    run_commands,
    serve_command,
    sql_command,
    state_command,
    upgrade_command,
    users_command,
    wake_command,
    watch_command,
    watch_live_command,
    what_if_command,
)
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS, NOT_CHECKED, WRONG_USE
from wakeroll_pipeline.cli.options import declared
from wakeroll_pipeline.cli.process_logs import TextFormatter, complain
from wakeroll_pipeline.ledger.ledger import UnreadableTable

app = typer.Typer(
    name="wakeroll",
    help="A consumer-group control plane for Kafka-compatible brokers; every decision is a row.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
_PANELS: Mapping[str, Sequence[Callable[..., None]]] = {
    "Run": (
        local_commands.up,
        run_commands.run,
        run_commands.observe,
        run_commands.tap,
        serve_command.serve,
        wake_command.wake,
        last_will_command.last_will,
        watch_command.watch_kafka,
        restore_command.restore,
        repair_command.repair,
        maintain_command.maintain,
        reshard_command.reshard,
        local_commands.demo,
        jars_command.jars,
    ),
    "Ask": (
        watch_live_command.watch,
        groups_command.groups,
        describe_command.describe,
        lag_command.lag,
        state_command.state,
        sql_command.sql,
        marts_command.marts,
        check_command.check,
        doctor_command.doctor,
        acls_command.acls,
    ),
    "Look back": (explain_command.explain, replay_command.replay, what_if_command.what_if),
    "Change": (
        change_commands.reset_offsets,
        change_commands.import_offsets,
        change_commands.configure,
        change_commands.kick,
        upgrade_command.upgrade,
        dead_letter_command.dlq,
    ),
}


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"wakeroll {installed_version()}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and exit.")
    ] = False,
) -> None:
    pass


for _panel, _commands in _PANELS.items():
    for _command in _commands:
        app.command(rich_help_panel=_panel)(declared(_command))
app.add_typer(keys_command.app, name="keys", rich_help_panel="Change")
app.add_typer(users_command.app, name="users", rich_help_panel="Change")


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("duckdb", "deltalake", "prometheus_client"), "ask"),
    **dict.fromkeys(("obstore", "fsspec"), "s3"),
    **dict.fromkeys(("pyspark", "py4j", "delta", "pandas", "pyarrow", "numpy"), "spark"),
}
"""Package -> the extra that installs it, for the commands that do not say so themselves."""


def run_app(arguments: Sequence[str]) -> int:
    """Run the subcommand that the arguments name; return the exit code.

    A usage error prints one sentence and returns 2, a table that cannot be read 3, another `WakerollError` or an OS
    error of a file 1.  Typer reports the errors that it finds in the arguments.  Any other exception is a bug, and
    keeps its traceback.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter())
    logging.basicConfig(handlers=[handler])
    for ours in ("wakeroll", "wakeroll_pipeline"):  # other libraries log warnings and errors only
        logging.getLogger(ours).setLevel(logging.INFO)
    try:
        app(list(arguments))
    except (WakerollError, UnknownLevel, MissingKeys) as error:
        complain(str(error))
        return _code_of(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        complain(str(missing_extra("this command", _EXTRAS[package], error)))
        return WRONG_USE
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        where = "" if error.filename is None else f"{error.filename}: "  # a write to an open file does not name it
        complain(f"{where}{error.strerror}")  # no access, no such file, disk full
        return BROKEN
    return HOLDS


def _code_of(error: Exception) -> int:
    if isinstance(error, InvalidUsage):
        return WRONG_USE
    return NOT_CHECKED if isinstance(error, UnreadableTable) else BROKEN
