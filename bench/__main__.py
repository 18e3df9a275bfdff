"""``python -m bench NAME``: measure one thing, write its figures, and generate docs/performance.md from all figures."""

import shutil
import signal
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from confluent_kafka import KafkaException

from bench import report
from bench.frame import Bench, write
from bench.machine import QUIET_LOAD, this_machine
from bench.report import BENCHES
from wakeroll.errors import WakerollError


def main(arguments: list[str] | None = None) -> int:
    """Measure and report; return 1 if something failed, 130 if it was stopped."""
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for bench in BENCHES:
        about, takes = bench.about, bench.takes
        bench.add_to(commands.add_parser(bench.name, help=f"{about} ({takes})", description=f"{about} Takes {takes}."))
    commands.add_parser("report", help="Generate docs/performance.md from the figures that there are.")
    given = parser.parse_args(arguments)
    if given.name == "report":
        report.make()
        return 0
    [chosen] = [bench for bench in BENCHES if bench.name == given.name]
    if chosen.differs(given) and given.json == chosen.path:
        parser.error(f"these are not the figures of {report.PAGE.name}; name another file with --json")
    return _run(chosen, given)


def _run(bench: Bench[Any], given: Namespace) -> int:
    given.machine = this_machine()
    if not given.machine.is_quiet:
        print(f"the load average is {given.machine.load:g}; from {QUIET_LOAD:g} on the run does not count", flush=True)
    if bench.has_folder:
        given.folder = given.folder.absolute()
        shutil.rmtree(given.folder, ignore_errors=True)
    # Also SIGINT: shells let background jobs ignore it.
    before = {stop: signal.signal(stop, signal.default_int_handler) for stop in (signal.SIGINT, signal.SIGTERM)}
    try:
        found = bench.measure(given)
    except KeyboardInterrupt:
        print("stopped; everything is down, and no figures were written", file=sys.stderr)
        return 130
    except (WakerollError, KafkaException) as problem:
        print(f"not measured: {problem}", file=sys.stderr)
        return 1
    finally:
        for stop, handler in before.items():
            signal.signal(stop, handler)
    if bench.file:
        path = given.json or given.folder / bench.file
        write(found, path)
        if path == bench.path:
            report.make()
    for _, text in bench.sections(found):
        print(f"\n{text}")
    if not bench.file:
        print(f"\nMeasured on {given.machine.measured} with {given.machine.sentence_with_load}")
    problems = bench.problems(found)
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
