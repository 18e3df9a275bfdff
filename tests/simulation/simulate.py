"""Worlds from many seeds: ``python tests/simulation/simulate.py --seeds 1000 [--from 0]``.

Exits with 1 and the story of the first failing world; else prints how often each fault happened.
"""

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from checks import broken  # noqa: E402 - found only after the line above
from plan import FAULTS, draw  # noqa: E402 - found only after the line above
from shrink import shrink, tell  # noqa: E402 - found only after the line above
from world import World  # noqa: E402 - found only after the line above

LEAST_EVENTS = 300
"""In the log of a world: fewer, and little can have gone wrong."""


def live(seed: int, happened: Counter[str]) -> str:
    """Run one world; return the story if a rule is broken, else nothing."""
    plan = draw(seed)
    world = World(plan).run()
    happened.update(world.happened)
    happened["events"] += sum(len(log) for log in world.broker.log)
    happened["messages"] += len(world.handlings)
    found = broken(world)
    if found:
        return tell(shrink(plan, found[0].rule))
    missing = sorted(FAULTS.keys() - world.happened.keys())
    few = sum(len(log) for log in world.broker.log) < LEAST_EVENTS
    return f"seed {seed}: too little happened; missing: {missing}" if missing or few else ""


def coverage(happened: Counter[str], worlds: int) -> str:
    """Say how often what happened."""
    lines = [f"{worlds} worlds, {happened['events']} events, {happened['messages']} messages handled"]
    return "\n".join(lines + [f"  {happened[kind]:6d}  {kind:10s} {FAULTS[kind]}" for kind in FAULTS])


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many worlds (default %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed (default %(default)s)")
    options = parser.parse_args()
    began, happened = time.monotonic(), Counter[str]()
    for number, seed in enumerate(range(options.first, options.first + options.seeds), 1):
        if story := live(seed, happened):
            print(story)
            print(f"again: python tests/simulation/simulate.py --from {seed} --seeds 1")
            return 1
        if number % 100 == 0:
            print(f"{number} worlds, {time.monotonic() - began:.0f} s", flush=True)
    print(coverage(happened, options.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
