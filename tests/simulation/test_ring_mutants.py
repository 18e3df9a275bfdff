"""The simulation of the ring finds what breaks one of its claims; if it did not, its silence would mean nothing."""

import pytest

from tests.support.mutants.mutant import alive
from tests.support.mutants.ring_mutants import MUTANTS
from tests.support.simulation.ring.ring_simulation import RING

TRIES = 30
"""Worlds for each mutant; most are found in the first ones."""


def test_each_mutant_changes_a_line_that_there_is():
    """`make test` does not run them, and would not notice that the code has changed."""
    for mutant in MUTANTS:
        with alive(mutant):
            pass


@pytest.mark.operate
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_claim_is_found(mutant):
    """Only a finding counts."""
    assert RING.finds(mutant, TRIES), (
        f"the mutant {mutant.name!r} survives {TRIES} worlds of the ring; it breaks: {mutant.rule}"
    )
