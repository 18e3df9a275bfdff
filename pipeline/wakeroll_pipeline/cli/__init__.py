"""The `wakeroll` command."""

import logging
import os
import sys

from wakeroll_pipeline.runtime.stop_signals import SERVICES, exit_on_signals


def main() -> None:
    """Run the command; exit with code 2 after a usage error, with code 1 after another failure."""
    # Before the imports, which take a second: a service that is stopped meanwhile has not failed.
    command = sys.argv[1] if len(sys.argv) > 1 else ""
    if command in SERVICES:
        exit_on_signals()
    elif command == "demo":
        exit_on_signals(interrupted=130)
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("wakeroll: the command needs the extra `ask`; install it with: pip install 'wakeroll[ask]'")
    from wakeroll_pipeline.cli.app import run_app

    if command not in SERVICES:
        sys.exit(run_app(sys.argv[1:]))
    try:
        code: object = run_app(sys.argv[1:])
    except SystemExit as end:
        code = end.code or 0
    if not isinstance(code, int):
        sys.exit(str(code))
    # Everything is closed. While Python ends beside threads of libraries, DuckDB writes lines about its own objects to
    # the log, which are no JSON.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
