"""The shipped core and client hold every rule in every state of small worlds, up to a depth; see `explore.py`."""

import re
from contextlib import nullcontext

import pytest

from tests.support.explorer.explored_worlds import WORLDS
from tests.support.explorer.search import explore
from tests.support.explorer.tale import Tale
from tests.support.explorer.universe import Universe
from tests.support.mutants.exploration_mutants import PLANTED
from tests.support.mutants.mutant import alive
from tests.support.story import Story
from wakeroll_model.replay import encode_decision

# Each move takes five times as long as all before it.
DEPTHS = [
    *((name, max(world.depth - 2, 2)) for name, world in sorted(WORLDS.items())),
    *(pytest.param(name, world.depth, marks=pytest.mark.operate) for name, world in sorted(WORLDS.items())),
]


@pytest.mark.parametrize(("name", "depth"), DEPTHS)
def test_no_interleaving_breaks_a_rule(name, depth, tell):
    """Bounded by moves, not by seconds: the same states everywhere."""
    world = WORLDS[name]

    explored = explore(Universe(world), depth)

    assert [Tale(world).tell(found.path, found.says) for found in explored.found] == []
    assert explored.depth == depth
    tell(
        f"world {name}, depth {explored.depth}: {explored.states} states, {explored.transitions} transitions, "
        f"healed in at most {explored.slowest_s} s"
    )


@pytest.mark.operate
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.mutant.name)
def test_a_broken_rule_is_found(planted):
    """If it were not, silence would mean nothing."""
    with alive(planted.mutant), alive(planted.also) if planted.also else nullcontext():
        explored = explore(Universe(WORLDS[planted.world]), planted.depth, heal=planted.heal)

    says = [sentence for found in explored.found for sentence in found.says]
    assert any(re.search(planted.says, sentence) for sentence in says), says


@pytest.mark.parametrize("name", sorted(WORLDS))
def test_a_story_of_a_path_decides_what_the_path_decided(name):
    """A counter-example must be the same thing when it is told to the shard."""
    universe = Universe(WORLDS[name])
    state, budget = universe.first().state, tuple(universe.world.budgets.values())
    path = []
    for number in range(12):
        moves = list(universe.moves(state, budget))
        move, paid = moves[number * 7 % len(moves)]
        path.append(move)
        state = universe.go(state, move).state
        budget = tuple(left - (at == paid) for at, left in enumerate(budget))

    text = Tale(WORLDS[name]).tell(path, ["a path"])
    story = Story()
    story.tell(text)

    ours = universe.coordinator.group(state.coordinator)
    theirs = story.group("group")
    assert (ours.epoch, ours.owners, ours.offsets) == (theirs.epoch, theirs.owners, theirs.offsets)
    assert {name: one.instance_id for name, one in ours.members.items()} == {
        name: one.instance_id for name, one in theirs.members.items()
    }
    assert all(map(encode_decision, story.decisions))
