"""The simulation finds what breaks a rule; if it did not, its silence would mean nothing."""

import pytest

from checks import broken
from mutant_list import MUTANTS, UNSEEN
from mutants import alive
from plan import draw
from world import World

TRIES = 40
"""Worlds for each mutant; most are found in the first one."""


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name not in UNSEEN], ids=lambda mutant: mutant.name)
def test_a_broken_rule_is_found(mutant):
    with alive(mutant):
        found = any(_is_found(seed, mutant) for seed in range(TRIES))

    assert found, f"the mutant {mutant.name!r} survives {TRIES} worlds; it breaks: {mutant.rule}"


def test_there_are_enough_mutants():
    """And those that are not found are named, with the reason."""
    names = [mutant.name for mutant in MUTANTS]

    assert len(names) == len(set(names))
    assert UNSEEN.keys() <= set(names)
    assert len(names) - len(UNSEEN) >= 25


def _is_found(seed, mutant):
    """A machine that falls over is found too: its asserts say what is impossible."""
    try:
        return bool(broken(World(draw(seed, **mutant.world)).run()))
    except (AssertionError, KeyError):
        return True
