"""Push consumption in worlds made from seeds: nothing is lost, order holds, and `run` returns, whatever happens."""

import os

import pytest

from tests.support.simulation.push.push_world import Plan, PushWorld

WORLDS = int(os.environ.get("PUSH_WORLDS", "200"))
"""Worlds with seeds in a row; `PUSH_WORLDS=2000` runs more."""
FIRST = int(os.environ.get("PUSH_FIRST", "0"))
QUICK = 50
"""Without `PUSH_WORLDS`, `make test` runs so many, and `make test-operate` the others."""
SEEDS = [
    pytest.param(seed, marks=[pytest.mark.operate] if seed >= QUICK and "PUSH_WORLDS" not in os.environ else [])
    for seed in range(FIRST, FIRST + WORLDS)
]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_promises_hold_in_every_world(seed):
    """The same seed is the same world, so that a failing one can be looked at."""
    PushWorld(Plan.draw(seed)).run()
