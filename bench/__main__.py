"""``python -m bench``: measure what needs no broker, write results.json, generate docs/performance.md."""

import argparse
import sys
import time
from collections.abc import Callable

from bench import heartbeats, holds, replay_speed, report, strategy_speed
from bench.machine import QUIET_LOAD, this_machine
from bench.results import FULL, RESULTS, Results, Sizes, write


def main(arguments: list[str] | None = None) -> int:
    """Measure, or only make the page anew."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("--report", action="store_true", help="measure nothing; make the page of the figures there are")
    given = parser.parse_args(arguments)
    if not given.report:
        write(measure(FULL, say=print), RESULTS)
    report.make()
    print(f"{report.PAGE.name} is made")
    return 0


def measure(sizes: Sizes, say: Callable[[str], object]) -> Results:
    """Measure everything; `say` is told what is at work."""
    machine = this_machine()
    if not machine.is_quiet:
        say(f"the load average is {machine.load:g}; from {QUIET_LOAD:g} on the figures do not count")
    began = time.monotonic()

    def next_is(what: str) -> None:
        say(f"{time.monotonic() - began:4.0f} s  {what}")

    next_is("heartbeats")
    beats = heartbeats.run(sizes.groups, sizes.members, sizes.beats)
    next_is("strategies, and Kafka's own")
    shared = strategy_speed.run(sizes.same, sizes.own, sizes.warmup_ms)
    next_is("replay")
    replayed = replay_speed.run(sizes.events, sizes.replayed_groups, sizes.large_groups, sizes.large_members)
    next_is("holds")
    held = holds.run(sizes.holds, sizes.woken, sizes.ticked)
    next_is("done")
    return Results(machine, beats, shared, replayed, held)


if __name__ == "__main__":
    sys.exit(main())
