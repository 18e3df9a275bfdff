"""The simulation finds what breaks a rule; if it did not, its silence would mean nothing."""

import runpy

import pytest

from tests.support.mutants.group_mutants import FOUND_BY_A_STORY, FOUND_BY_A_TEST, MUTANTS
from tests.support.mutants.mutant import alive
from tests.support.mutants.polling_mutants import MUTANTS as POLLING_MUTANTS
from tests.support.running_processes import ROOT
from tests.support.simulation.groups.group_simulation import GROUPS
from tests.support.simulation.polling.polling_simulation import POLLING
from tests.support.story import Story

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
    "a slice is claimed beside its former ones",
    "a part of a partition has an offset that nobody finds",
}
"""Mutants that take 3 to 20 s each, half of the time of all: `make test-operate` plants them."""
EVERY = 4
"""Of the other mutants, `make test` plants each fourth one; `make test-operate` plants the rest."""

ALL = {
    one.name: (simulation, one) for simulation, some in ((GROUPS, MUTANTS), (POLLING, POLLING_MUTANTS)) for one in some
}
IN_WORLDS = [pair for name, pair in ALL.items() if name not in FOUND_BY_A_STORY.keys() | FOUND_BY_A_TEST.keys()]
STORIES = ROOT / "tests" / "scenarios"


def named(*pairs):
    quick = {id(pair) for pair in [pair for pair in pairs if pair[1].name not in SLOW][::EVERY]}
    return [
        pytest.param(*pair, id=pair[1].name, marks=[] if id(pair) in quick else [pytest.mark.operate]) for pair in pairs
    ]


@pytest.mark.parametrize(("simulation", "mutant"), named(*IN_WORLDS))
def test_a_broken_rule_is_found(simulation, mutant):
    """Only a checker's finding counts."""
    assert simulation.finds(mutant, TRIES), (
        f"the mutant {mutant.name!r} survives {TRIES} worlds of {simulation.name}; it breaks: {mutant.rule}"
    )


def test_each_mutant_changes_a_line_that_there_is():
    """`make test` does not run all of them, and would not notice that the code has changed."""
    for _, mutant in ALL.values():
        with alive(mutant):
            pass


@pytest.mark.parametrize("name", FOUND_BY_A_STORY)
def test_a_broken_rule_that_no_world_shows_changes_a_story(name):
    told = (STORIES / f"{FOUND_BY_A_STORY[name]}.txt").read_text(encoding="utf-8")
    _, mutant = ALL[name]

    with alive(mutant):
        assert Story().tell(told) != told, f"no line of the story changes; the mutant breaks: {mutant.rule}"


@pytest.mark.parametrize("name", FOUND_BY_A_TEST)
def test_a_broken_rule_that_no_world_shows_fails_a_test(name):
    file, function = FOUND_BY_A_TEST[name]
    test = runpy.run_path(str(ROOT / file))[function]
    test()

    with alive(ALL[name][1]), pytest.raises(AssertionError):
        test()


def test_there_are_enough_mutants():
    assert len(ALL) == len(MUTANTS) + len(POLLING_MUTANTS), "two have one name"
    assert ALL.keys() >= FOUND_BY_A_STORY.keys() | FOUND_BY_A_TEST.keys() | SLOW
    assert len(MUTANTS) - len(FOUND_BY_A_STORY) - len(FOUND_BY_A_TEST) >= 35
