"""The ring keeps its promises in worlds made from seeds: the SDK's public classes, an operator, and every fault."""

from collections import Counter

import pytest

from tests.support.mutants.ring_mutants import CHANGE
from tests.support.simulation.ring.ring_plan import Step, draw
from tests.support.simulation.ring.ring_simulation import RING
from tests.support.simulation.ring.ring_world import RingWorld

SEEDS = 80
"""Worlds of each run; `python -m tests.simulation.simulate --only ring --seeds 1000` runs more."""
QUICK = 25
"""`make test` runs so many of them, and `make test-operate` the others."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.operate] if seed >= QUICK else []) for seed in range(SEEDS)]
)
def test_the_promises_hold_in_every_world(seed):
    """Whatever happens: nothing is lost, no two members read one queue, and everything ends."""
    story = RING.live(seed, Counter())

    assert not story, story


def test_the_same_seed_is_the_same_world():
    """A failing seed can be looked at again: threads, time and random ids are under its control."""
    first, second = RingWorld(draw(26)).run(), RingWorld(draw(26)).run()

    assert first.story == second.story
    assert first.scheduler.switches == second.scheduler.switches


def test_a_member_that_leaves_after_a_reshard_is_gone_at_once():
    """Its last events go to the group's new partition; in the old one, its queues would wait for it for minutes."""
    steps = (Step(12.0, "reshard", 1), Step(2.5, "leave", 1), Step(2.0, "resume", 1))
    quiet = {"messages": 10, "fails": 0.0, "heartbeat_ms": 10_000, "session_timeout_ms": 45_000, "pace_s": 0.05}
    for seed in range(8):
        world = RingWorld(draw(seed, is_rough=True, partitions=1, members=2, faults=steps, **quiet)).run()

        assert world.happened["reshard"] == world.happened["leave"] == 1


def test_a_member_that_can_read_its_inbox_again_does_not_join_again_and_again():
    """After an outage it is still deaf until it has queried the end of its inbox, and drops each new assignment."""
    steps = (Step(2.0, "brokers away", 1), Step(30.0, "resume", 1))
    for seed in range(12):
        RingWorld(draw(seed, is_rough=True, members=3, faults=steps, session_timeout_ms=10_000)).run()


@pytest.mark.parametrize("seed", [5, 21, 22, 223])
def test_members_that_change_topics_patterns_and_filters_pass_over_nothing_that_others_want(seed):
    """A change is known to others later: until then, and in queues that are left, messages are kept for them."""
    world = RingWorld(draw(seed, **CHANGE)).run()

    assert world.happened["resubscribe"]
