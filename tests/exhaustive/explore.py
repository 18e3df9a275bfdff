"""Explore bounded worlds exhaustively: ``python -m tests.exhaustive.explore --world A --depth 6``.

Every interleaving of deliver, lose, repeat, delay, tick, crash, restart, release, commit, kick, route change and loss
of state is tried, up to a number of moves; states that are equal are visited once.  Prints states, transitions and
depth.  Exits with 1 and a story in the format of tests/scenarios if a rule is broken.
"""

import argparse
import gc
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from tests.support.explorer.explored_worlds import WORLDS
from tests.support.explorer.search import Explored, explore
from tests.support.explorer.tale import Tale
from tests.support.explorer.universe import Universe


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="explore", description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), action="append", help="this one, and others (default: all)")
    parser.add_argument("--depth", type=int, help="moves (default: each world's own)")
    parser.add_argument("--long", action="store_true", help="the depths for minutes, not those of CI")
    parser.add_argument(
        "--heal-every", type=int, default=1, help="of the states of the last depth, how many heal: 1 in"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a world (default %(default)s)")
    options = parser.parse_args()
    names = options.world or sorted(WORLDS)
    depths = [options.depth or (WORLDS[name].long_depth if options.long else WORLDS[name].depth) for name in names]
    tasks = zip(names, depths, [options.heal_every] * len(names), strict=True)
    if options.jobs == 1:
        return max([_tell(*_run(*task)) for task in tasks])
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        return max([_tell(*future.result()) for future in [pool.submit(_run, *task) for task in tasks]])


def _run(name: str, depth: int, heal_every: int) -> tuple[Explored, float]:
    gc.disable()  # there are no cycles, and very many tuples
    began = time.process_time()
    explored = explore(Universe(WORLDS[name]), depth, heal_every=heal_every)
    gc.enable()
    return explored, time.process_time() - began


def _tell(explored: Explored, cpu_s: float) -> int:
    world = WORLDS[explored.world]
    print(f"world {world.name}, {world.about}")
    print(
        f"  depth {explored.depth}: {explored.states} states, {explored.transitions} transitions; "
        f"{explored.healed} states heal, the slowest in {explored.slowest_s} s ({explored.calm_states} calm states); "
        f"{cpu_s:.0f} s CPU",
        flush=True,
    )
    for found in explored.found:
        print(Tale(world).tell(found.path, found.says))
    return int(bool(explored.found))


if __name__ == "__main__":
    sys.exit(main())
