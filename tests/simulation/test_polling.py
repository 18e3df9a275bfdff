"""Every pull is answered once and nobody misses a message: worlds made from seeds, in which everything goes wrong."""

from model.decisions import Wake
from polling.checks import broken
from polling.faults import KINDS
from polling.live import REASONS, coverage, live
from polling.plan import draw
from polling.world import World
from seeds import digests, run_worlds

LEAST, BUDGET_S = 12, 6
"""Worlds at least, and seconds for more of them."""


def test_the_rules_of_long_polling_hold_in_every_world(tell):
    """`python tests/simulation/simulate.py --only polling --from SEED --seeds 1` runs a failing one again."""
    happened, worlds = run_worlds(live, LEAST, BUDGET_S)
    tell(coverage(happened, worlds))
    assert {*KINDS, *REASONS} <= happened.keys()


def test_a_seed_is_a_world_of_long_polling_whatever_the_hash_seed():
    """Or a failing seed could not be looked at."""
    first, second = digests(
        "from polling.plan import draw; from polling.world import World; world = World(draw(7)).run();"
        "said = [(one.encoded, one.log) for one in world.coordinators]"
    )

    assert first == second


def test_without_faults_nobody_hears_what_only_faults_explain():
    """What the checkers let pass as superseded, cancelled or cut must come from faults, or it would excuse too much."""
    world = World(draw(3, only=())).run()

    assert broken(world) == []
    answers = {one.reason for each in world.coordinators for one in each.decisions if isinstance(one, Wake)}
    assert answers <= {"arrival", "timeout", "skipped"}
    assert not any(reading.blind for poller in world.pollers.values() for reading in poller.readings.values())
