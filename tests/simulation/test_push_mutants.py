"""The worlds of push consumption find what breaks a rule of attempts; if not, their silence would mean nothing."""

from dataclasses import replace

import pytest

from tests.support.mutants.mutant import Mutant, alive
from tests.support.mutants.push_mutants import MUTANTS
from tests.support.simulation.push.push_world import Plan, PushWorld

TRIES = 60
"""Worlds for each mutant; most are found in the first ones."""


def finding_of(mutant: Mutant) -> str | None:
    """Return what a world finds; None if no world finds anything."""
    for seed in range(TRIES):
        try:
            PushWorld(replace(Plan.draw(seed), **mutant.world)).run()
        except AssertionError as found:
            return str(found)
    return None


@pytest.mark.operate
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_found(mutant):
    with alive(mutant):
        found = finding_of(mutant)

    assert found, f"the mutant {mutant.name!r} survives {TRIES} worlds; it breaks: {mutant.rule}"


@pytest.mark.parametrize("world", [mutant.world for mutant in (MUTANTS[0], MUTANTS[1])], ids=["shared", "in order"])
def test_nothing_is_found_in_the_worlds_of_the_mutants_while_the_rules_hold(world):
    """Otherwise it would not be the mutant that is found."""
    for seed in range(TRIES // 3):
        PushWorld(replace(Plan.draw(seed), **world)).run()
