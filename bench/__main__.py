"""``python -m bench``: measure what needs no broker, write results.json, generate docs/performance.md."""

import argparse
import sys
import time
from collections.abc import Callable

from bench import heartbeats, holds, replay_speed, report, strategy_speed
from bench.machine import QUIET_LOAD, this_machine
from bench.results import FULL, RESULTS, Results, Sizes, write


def main(arguments: list[str] | None = None) -> int:
    """Measure, or only generate the page."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="measure nothing; generate the page from results.json")
    given = parser.parse_args(arguments)
    if not given.report:
        write(measure(FULL, say=print), RESULTS)
    report.make()
    print(f"wrote {report.PAGE.name}")
    return 0


def measure(sizes: Sizes, say: Callable[[str], object]) -> Results:
    """Measure everything; `say` receives a line for each step."""
    machine = this_machine()
    if not machine.is_quiet:
        say(f"the load average is {machine.load:g}; figures measured at {QUIET_LOAD:g} or more are not comparable")
    began = time.monotonic()

    def next_is(what: str) -> None:
        say(f"{time.monotonic() - began:4.0f} s  {what}")

    next_is("heartbeats")
    beats = heartbeats.run(sizes.groups, sizes.members, sizes.beats)
    next_is("strategies, compared with Kafka's")
    shared = strategy_speed.run(sizes.same, sizes.own, sizes.warmup_ms)
    next_is("replay")
    replayed = replay_speed.run(sizes.events, sizes.replayed_groups, sizes.large_groups, sizes.large_members)
    next_is("held pulls")
    held = holds.run(sizes.holds, sizes.woken, sizes.ticked)
    next_is("done")
    return Results(machine, beats, shared, replayed, held)


if __name__ == "__main__":
    sys.exit(main())
