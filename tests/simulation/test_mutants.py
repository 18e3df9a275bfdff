"""The simulation finds what breaks a rule; if it did not, its silence would mean nothing."""

from functools import partial

import pytest

from tests.support.mutants.group_mutants import MUTANTS, UNSEEN
from tests.support.mutants.mutant import alive
from tests.support.mutants.polling_mutants import MUTANTS as POLLING_MUTANTS
from tests.support.simulation.groups import group_plan
from tests.support.simulation.groups.checks import judge
from tests.support.simulation.groups.group_world import World
from tests.support.simulation.polling import polling_checks, polling_plan
from tests.support.simulation.polling.polling_world import World as PollingWorld

TRIES = 40
"""Worlds for each mutant; most are found in the first one."""

mutants = partial(pytest.mark.parametrize, "mutant", ids=lambda mutant: mutant.name)


@mutants([one for one in MUTANTS if one.name not in UNSEEN])
def test_a_broken_rule_of_groups_is_found(mutant):
    def is_found(seed):
        return judge.broken(World(group_plan.draw(seed, **mutant.world)).run())

    assert _found_by(is_found, mutant), _survives(mutant)


@mutants([one for one in POLLING_MUTANTS if one.name not in UNSEEN])
def test_a_broken_rule_of_long_polling_is_found(mutant):
    def is_found(seed):
        return polling_checks.broken(PollingWorld(polling_plan.draw(seed, **mutant.world)).run())

    assert _found_by(is_found, mutant), _survives(mutant)


@mutants([one for one in (*MUTANTS, *POLLING_MUTANTS) if one.name in UNSEEN])
def test_what_is_not_found_is_a_mutant_still(mutant):
    """What `UNSEEN` says of it is about code that stands there."""
    with alive(mutant):
        assert UNSEEN[mutant.name]


def test_there_are_enough_mutants():
    """And those that are not found are named, with the reason."""
    names = [mutant.name for mutant in (*MUTANTS, *POLLING_MUTANTS)]

    assert len(names) == len(set(names))
    assert UNSEEN.keys() <= set(names)
    assert len(MUTANTS) - len(UNSEEN) >= 35


def _found_by(is_found, mutant):
    """Only a checker's finding counts; a world must not end with an exception."""
    with alive(mutant):
        return any(is_found(seed) for seed in range(TRIES))


def _survives(mutant):
    return f"the mutant {mutant.name!r} survives {TRIES} worlds; it breaks: {mutant.rule}"
