"""The `wakeroll` command."""

import sys


def main() -> None:
    """Run the command; a mistake of the user's ends with its sentence and exit code 2, a failure with 1."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("wakeroll: the command needs the extra `spark`; install it with: pip install 'wakeroll[spark]'")
    from pipeline.cli.app import run_app

    sys.exit(run_app(sys.argv[1:]))
