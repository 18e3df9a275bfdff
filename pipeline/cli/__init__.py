"""The `wakeroll` command."""

import sys


def main() -> None:
    """Run the command; exit with code 2 after a usage error, with code 1 after another failure."""
    try:
        import typer  # noqa: F401
    except ModuleNotFoundError:
        sys.exit("wakeroll: the command needs the extra `ask`; install it with: pip install 'wakeroll[ask]'")
    from pipeline.cli.app import run_app

    sys.exit(run_app(sys.argv[1:]))
