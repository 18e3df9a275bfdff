"""A failing world is told in a few lines, or nobody would read it."""

from tests.support.mutants.group_mutants import MUTANTS
from tests.support.mutants.mutant import alive
from tests.support.mutants.polling_mutants import MUTANTS as POLLING_MUTANTS
from tests.support.simulation.groups import group_plan, group_story
from tests.support.simulation.groups.checks import judge
from tests.support.simulation.groups.group_world import World
from tests.support.simulation.polling import polling_checks, polling_plan, polling_story
from tests.support.simulation.polling.polling_world import World as PollingWorld

RUNS = 20
"""Worlds to find a smaller one in."""


def test_a_failing_world_of_groups_is_told_with_fewer_faults():
    """What has nothing to do with it is left out, and the broken rule stands last."""
    mutant = _named(MUTANTS, "starts at the first message")
    big = group_plan.draw(0, **mutant.world)
    with alive(mutant):
        first = judge.broken(World(big).run())[0]
        small = group_story.shrink(big, first.rule, RUNS)
        story = group_story.tell(small).splitlines()

    assert set(small.faults) < set(big.faults)
    assert story[0].startswith(f"seed 0: {first.rule}")
    assert f"BROKEN {first.rule}" in story[-1]
    assert len(story) <= group_story.LINES + 4


def test_a_failing_world_of_long_polling_is_told_with_fewer_faults():
    mutant = _named(POLLING_MUTANTS, "cancel is not answered")
    big = polling_plan.draw(0, **mutant.world)
    with alive(mutant):
        first = polling_checks.broken(PollingWorld(big).run())[0]
        small = polling_story.shrink(big, first.rule, RUNS)
        story = polling_story.tell(small).splitlines()

    assert set(small.faults) < set(big.faults)
    assert story[0].startswith("seed 0: ")
    assert "BROKEN " in story[-1]


def test_a_world_that_breaks_no_rule_says_so():
    assert group_story.tell(group_plan.draw(0, only=(), chaos_ms=60_000)) == "seed 0: no rule is broken"


def _named(mutants, name):
    return next(mutant for mutant in mutants if mutant.name == name)
