"""The subcommands of `wakeroll`, and the handling of their errors."""

import errno
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from wakeroll.errors import InvalidUsage, WakerollError, missing_extra
from wakeroll.installed_version import installed_version
from wakeroll_model.feature_levels import UnknownLevel
from wakeroll_model.valid_keys import MissingKeys
from wakeroll_pipeline.cli.completed_names import is_completing, words_to_complete
from wakeroll_pipeline.cli.exit_codes import BROKEN, HOLDS, NOT_CHECKED, WRONG_USE
from wakeroll_pipeline.cli.options import declared
from wakeroll_pipeline.cli.process_logs import TextFormatter, complain
from wakeroll_pipeline.cli.usage_errors import OneLineErrors
from wakeroll_pipeline.ledger.ledger import UnreadableTable

_COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Run": {
        "up": "local_commands",
        "run": "run_commands",
        "observe": "run_commands",
        "tap": "run_commands",
        "serve": "serve_command",
        "wake": "wake_command",
        "last-will": "run_commands",
        "watch-kafka": "watch_command",
        "restore": "restore_command",
        "repair": "repair_command",
        "maintain": "maintain_command",
        "reshard": "reshard_command",
        "demo": "local_commands",
        "jars": "jars_command",
    },
    "Ask": {
        "watch": "watch_live_command",
        "groups": "groups_command",
        "describe": "describe_command",
        "lag": "lag_command",
        "state": "state_command",
        "sql": "sql_command",
        "marts": "marts_command",
        "check": "check_command",
        "doctor": "doctor_command",
        "acls": "acls_command",
    },
    "Look back": {
        "happened": "happened_command",
        "explain": "explain_command",
        "replay": "replay_command",
        "what-if": "what_if_command",
    },
    "Change": {
        "reset-offsets": "change_commands",
        "skip": "change_commands",
        "import-offsets": "change_commands",
        "configure": "change_commands",
        "inspect": "change_commands",
        "kick": "change_commands",
        "pause": "pause_commands",
        "resume": "pause_commands",
        "delete-offsets": "delete_commands",
        "delete-group": "delete_commands",
        "upgrade": "upgrade_command",
        "dlq": "dead_letter_command",
        "keys": "keys_command",
        "users": "users_command",
    },
}
"""Panel of the help -> command -> its module. The function has the name of the command, or the name `app` if there are
subcommands."""


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command at the beginning of the arguments, or with all commands if there is none.

    An import of the modules of all commands would take longer than most answers. While a shell completes the name of a
    command, only the names are needed.
    """
    app = typer.Typer(
        name="wakeroll",
        help="A consumer-group control plane for Kafka-compatible brokers; every decision is a row.",
        cls=OneLineErrors,
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )
    app.callback()(_options)
    every = [(panel, *command) for panel, commands in _COMMANDS.items() for command in commands.items()]
    named = [one for one in every if one[1] == next(iter(arguments), None)]
    if not named and is_completing():
        for _, name, _ in every:
            app.command(name)(_options)
        return app
    for panel, name, module_name in named or every:
        module = import_module(f"wakeroll_pipeline.cli.{module_name}")
        if isinstance(subcommands := getattr(module, "app", None), typer.Typer):
            app.add_typer(subcommands, name=name, rich_help_panel=panel)
        else:
            app.command(name, rich_help_panel=panel)(declared(getattr(module, name.replace("-", "_"))))
    return app


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"wakeroll {installed_version()}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version, and exit.")
    ] = False,
) -> None:
    pass


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

_EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("duckdb", "deltalake", "prometheus_client"), "ask"),
    **dict.fromkeys(("obstore", "fsspec"), "s3"),
    **dict.fromkeys(("pyspark", "py4j", "delta", "pandas", "pyarrow", "numpy"), "spark"),
}
"""Package -> the extra that installs it, for the commands without an error of their own."""


def run_app(arguments: Sequence[str]) -> int:
    """Run the subcommand that the arguments name; return the exit code.

    A usage error prints one sentence and returns 2, a table that cannot be read 3, another `WakerollError` or an OS
    error of a file 1.  Any other exception is a bug, and keeps its traceback.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(TextFormatter())
    logging.basicConfig(handlers=[handler])
    for ours in ("wakeroll", "wakeroll_pipeline"):  # other libraries log warnings and errors only
        logging.getLogger(ours).setLevel(logging.INFO)
    if is_completing():
        return _complete()
    try:
        app_for(arguments)(list(arguments), prog_name="wakeroll")
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


def _complete() -> int:
    """Answer a shell that completes a command line; no error may disturb the line of the user."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    with suppress(SystemExit):
        app_for(words_to_complete())((), prog_name="wakeroll")
    sys.stdout.flush()
    os._exit(HOLDS)  # a thread that still waits for a broker would delay the end


def _code_of(error: Exception) -> int:
    if isinstance(error, InvalidUsage):
        return WRONG_USE
    return NOT_CHECKED if isinstance(error, UnreadableTable) else BROKEN
