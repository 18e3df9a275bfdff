"""A failing world is told in a few lines, or nobody would read it."""

import pytest

from tests.support.mutants.group_mutants import MUTANTS
from tests.support.mutants.mutant import alive
from tests.support.mutants.polling_mutants import MUTANTS as POLLING_MUTANTS
from tests.support.simulation.groups.group_simulation import GROUPS
from tests.support.simulation.groups.group_story import LINES
from tests.support.simulation.polling.polling_simulation import POLLING
from tests.support.simulation.polling.polling_story import LINES as POLLING_LINES

RUNS = 20
"""Worlds to find a smaller one in."""


@pytest.mark.parametrize(
    ("simulation", "mutants", "name", "lines"),
    [
        pytest.param(GROUPS, MUTANTS, "starts at the first message", LINES + 4, id="groups"),
        pytest.param(POLLING, POLLING_MUTANTS, "cancel is not answered", POLLING_LINES + 30, id="polling"),
    ],
)
def test_a_failing_world_is_told_with_fewer_faults(simulation, mutants, name, lines):
    """What has nothing to do with it is left out, and the broken rule stands last."""
    mutant = next(one for one in mutants if one.name == name)
    big = simulation.draw(0, **mutant.world)
    with alive(mutant):
        first = simulation.broken(simulation.world(big).run())[0]
        small = simulation.shrink(big, first.rule, RUNS)
        story = simulation.tell(small).splitlines()

    assert set(small.faults) < set(big.faults)
    assert story[0].startswith(f"seed 0: {first.rule}")
    assert f"BROKEN {first.rule}" in story[-1]
    assert len(story) <= lines


@pytest.mark.parametrize("simulation", [GROUPS, POLLING], ids=lambda simulation: simulation.name)
def test_a_world_that_breaks_no_rule_says_so(simulation):
    assert simulation.tell(simulation.draw(0, only=(), chaos_ms=60_000)) == "seed 0: no rule is broken"
