"""``python -m wakeroll.last_will``: the command ``wakeroll last-will`` for images that have only the SDK."""

import argparse
import sys

from wakeroll.errors import InvalidUsage
from wakeroll.last_will.executor_link import LISTEN, listen


def main() -> int:
    """Run the command; print an error and return 2 if it cannot listen."""
    parser = argparse.ArgumentParser("python -m wakeroll.last_will", description="Execute last wills of consumers.")
    parser.add_argument("--listen", metavar="unix:PATH", default=LISTEN, help="default: %(default)s")
    try:
        listen("--listen", parser.parse_args().listen)
    except InvalidUsage as problem:
        print(problem, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
