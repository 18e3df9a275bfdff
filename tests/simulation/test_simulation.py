"""Never two owners, nothing lost, nobody evicted: worlds made from seeds, in which everything goes wrong."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from checks.live import coverage, live
from world.plan import draw
from world.world import World

SEEDS = int(os.environ.get("SEEDS", "0"))
"""How many worlds; 0: `LEAST`, and up to `MOST` as long as there is time."""
LEAST, MOST = 20, 60
BUDGET_S = 20


def test_the_rules_hold_in_every_world(tell):
    """A failing world is shrunk and told; `python tests/simulation/simulate.py --from SEED --seeds 1` runs it again."""
    began, happened, seed = time.monotonic(), Counter(), 0
    while seed < SEEDS or (not SEEDS and (seed < LEAST or (seed < MOST and time.monotonic() - began < BUDGET_S))):
        story = live(seed, happened)
        assert not story, f"\n{story}"
        seed += 1
    tell(coverage(happened, seed))


def test_a_seed_is_a_world_whatever_the_hash_seed():
    """Or a failing seed could not be looked at."""
    code = (
        "import hashlib; from world.plan import draw; from world.world import World; world = World(draw(7)).run();"
        "said = [one.encoded for one in world.coordinators], world.seen.handlings, world.broker.log;"
        "print(hashlib.sha256(repr(said).encode()).hexdigest())"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])

    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert digest("1") == digest("2")


def test_without_faults_nobody_leaves_and_nothing_is_handled_twice():
    """What the checkers excuse must come from faults, or they would excuse too much."""
    world = World(draw(3, only=(), chaos_ms=120_000, eager=False)).run()

    assert world.seen.drops == []
    handled = [(one.scope, one.queue, one.offset) for one in world.seen.handlings]
    assert len(handled) == len(set(handled))
