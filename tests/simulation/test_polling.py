"""Every pull is answered once and nobody misses a message: worlds made from seeds, in which everything goes wrong."""

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from model.decisions import Wake
from polling.checks import broken
from polling.faults import KINDS
from polling.live import REASONS, coverage, live
from polling.plan import draw
from polling.world import World

SEEDS = int(os.environ.get("SEEDS", "0"))
"""How many worlds; 0: `LEAST`, and up to `MOST` as long as there is time."""
LEAST, MOST = 12, 60
BUDGET_S = 6


def test_the_rules_of_long_polling_hold_in_every_world(tell):
    """`python tests/simulation/simulate.py --only polling --from SEED --seeds 1` runs a failing one again."""
    began, happened, seed = time.monotonic(), Counter(), 0
    while seed < SEEDS or (not SEEDS and (seed < LEAST or (seed < MOST and time.monotonic() - began < BUDGET_S))):
        story = live(seed, happened)
        assert not story, f"\n{story}"
        seed += 1
    tell(coverage(happened, seed))
    assert {*KINDS, *REASONS} <= happened.keys()


def test_a_seed_is_a_world_of_long_polling_whatever_the_hash_seed():
    """Or a failing seed could not be looked at."""
    code = (
        "import hashlib; from polling.plan import draw; from polling.world import World; world = World(draw(7)).run();"
        "said = [(one.encoded, one.log) for one in world.coordinators];"
        "print(hashlib.sha256(repr(said).encode()).hexdigest())"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])

    def digest(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout

    assert digest("1") == digest("2")


def test_without_faults_nobody_hears_what_only_faults_explain():
    """What the checkers let pass as superseded, cancelled or cut must come from faults, or it would excuse too much."""
    world = World(draw(3, only=())).run()

    assert broken(world) == []
    answers = {one.reason for each in world.coordinators for one in each.decisions if isinstance(one, Wake)}
    assert answers <= {"arrival", "timeout", "skipped"}
    assert not any(reading.blind for poller in world.pollers.values() for reading in poller.readings.values())
