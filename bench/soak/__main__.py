"""``make soak``: run the whole system for some minutes with faults; fail if a claim does not hold, and name it.

``make soak ARGS="--minutes 120 --clients 500 --per-process 50 --every 60 --publish"`` is the long one. Everything ends
with it, whatever the reason. `--publish` writes `bench/soak.json` and `docs/performance.md`.
"""

import argparse
import random
import shutil
import signal
import sys
from pathlib import Path

from bench import report
from bench.results import write
from bench.soak.soak_figures import SOAK, section
from bench.soak.soak_run import soak
from bench.soak.soak_shape import Shape
from wakeroll.errors import WakerollError

FOLDER = Path(".wakeroll/soak")


def main(arguments: list[str] | None = None) -> int:
    """Run a soak and report; return 1 if a claim does not hold, 130 if it was stopped."""
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=_number, default=5.0, help="with faults (%(default)g)")
    parser.add_argument("--every", type=_number, default=30.0, help="seconds between two faults (%(default)g)")
    parser.add_argument("--clients", type=_count, default=100, help="consumers at the start (%(default)s)")
    parser.add_argument("--per-process", type=_count, default=10, help="consumers in one process (%(default)s)")
    parser.add_argument("--per-second", type=_count, default=200, help="messages of all topics (%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults' order (default: by chance)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of all data and logs, emptied first (%(default)s)")
    parser.add_argument("--publish", action="store_true", help="write bench/soak.json and docs/performance.md")
    given = parser.parse_args(arguments)
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    seed = random.randrange(10**6) if given.seed is None else given.seed
    shutil.rmtree(given.folder, ignore_errors=True)
    try:
        shape = Shape(given.clients, given.per_process, given.per_second)
        found = soak(given.folder, shape, given.minutes, given.every, seed)
    except KeyboardInterrupt:
        print("stopped; everything is down, and no figures were written", file=sys.stderr)
        return 130
    except WakerollError as problem:
        print(f"not measured: {problem}", file=sys.stderr)
        return 1
    write(found, given.folder / SOAK.name)
    if given.publish:
        write(found, SOAK)
        report.make()
    print(section(found))
    for claim in found.broken:
        print(
            f"the claim does not hold: {claim.what}; {claim.found} (seed {seed}, logs in {given.folder})",
            file=sys.stderr,
        )
    return 1 if found.broken else 0


def _number(text: str) -> float:
    value = float(text)
    if not 0 < value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
