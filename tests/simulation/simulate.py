"""Worlds from many seeds: ``python -m tests.simulation.simulate --seeds 1000 [--from 0] [--only polling]``.

Each seed is a world of groups, one of groups whose topics are cut into slices, one of long polling, and one of the
ring (the public classes of the SDK).  Exits with 1
and the story of the first failing world; else prints how often each fault happened.
"""

import argparse
import sys
import time
from collections import Counter

from tests.support.simulation.groups.group_simulation import GROUPS, SLICES
from tests.support.simulation.polling.polling_simulation import POLLING
from tests.support.simulation.ring.ring_simulation import RING, SLICED_RING

SIMULATIONS = {"groups": GROUPS, "slices": SLICES, "polling": POLLING, "ring": RING, "sliced ring": SLICED_RING}


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many (default %(default)s)")
    parser.add_argument("--from", type=int, default=0, dest="first", help="first seed (default %(default)s)")
    parser.add_argument("--only", choices=SIMULATIONS, action="append", help="worlds of this kind (default: of all)")
    options = parser.parse_args()
    names = options.only or list(SIMULATIONS)
    began, happened = time.monotonic(), {name: Counter[str]() for name in names}
    for number, seed in enumerate(range(options.first, options.first + options.seeds), 1):
        for name in names:
            again = f"again: python -m tests.simulation.simulate --from {seed} --seeds 1 --only {name}"
            try:
                story = SIMULATIONS[name].live(seed, happened[name])
            except Exception:  # a checker that fails is a finding, too
                print(again)
                raise
            if story:
                print(story)
                print(again)
                return 1
        if number % 100 == 0:
            print(f"{number} seeds, {time.monotonic() - began:.0f} s", flush=True)
    for name in names:
        print(SIMULATIONS[name].coverage(happened[name], options.seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
