"""The simulation finds what breaks a rule; if it did not, its silence would mean nothing."""

import pytest

from tests.support.mutants.group_mutants import MUTANTS, UNSEEN
from tests.support.mutants.mutant import alive
from tests.support.mutants.polling_mutants import MUTANTS as POLLING_MUTANTS
from tests.support.simulation.groups.group_simulation import GROUPS
from tests.support.simulation.polling.polling_simulation import POLLING

TRIES = 40
"""Worlds for each mutant; most are found in the first one."""

SLOW = {
    "an epoch of others is proof",
    "no self-fence",
    "no grace",
    "an inbox that was created again counts as read",
    "revoke timeout never comes",
    "who must give up may lock",
    "one record of others is proof",
    "a client is kept out for ever",
    "a reset of what is given up is undone",
    "a shorter revoke timeout counts at once",
    "an old life may lock",
    "lives are forgotten early",
    "a reset leaves what was done",
    "a slice is claimed beside its former ones",
    "a part of a partition has an offset that nobody finds",
}
"""Mutants that take 3 to 20 s each, half of the time of all: `make test-operate` plants them."""

ALL = (*((GROUPS, one) for one in MUTANTS), *((POLLING, one) for one in POLLING_MUTANTS))


def named(*pairs):
    marks = dict.fromkeys(SLOW, pytest.mark.operate)
    return [pytest.param(*pair, id=pair[1].name, marks=marks.get(pair[1].name, ())) for pair in pairs]


@pytest.mark.parametrize(("simulation", "mutant"), named(*(pair for pair in ALL if pair[1].name not in UNSEEN)))
def test_a_broken_rule_is_found(simulation, mutant):
    """Only a checker's finding counts."""
    assert simulation.finds(mutant, TRIES), (
        f"the mutant {mutant.name!r} survives {TRIES} worlds of {simulation.name}; it breaks: {mutant.rule}"
    )


@pytest.mark.parametrize("mutant", [one for _, one in ALL if one.name in UNSEEN], ids=lambda mutant: mutant.name)
def test_what_is_not_found_is_a_mutant_still(mutant):
    """What `UNSEEN` says of it is about code that stands there."""
    with alive(mutant):
        assert UNSEEN[mutant.name]


def test_there_are_enough_mutants():
    """And those that are not found are named, with the reason."""
    names = [mutant.name for _, mutant in ALL]

    assert len(names) == len(set(names))
    assert UNSEEN.keys() <= set(names)
    assert set(names) >= SLOW
    assert len(MUTANTS) - len(UNSEEN) >= 35
