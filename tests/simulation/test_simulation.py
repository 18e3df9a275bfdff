"""Never two owners, nothing lost, nobody evicted: worlds made from seeds, in which everything goes wrong."""

from tests.support.mutants.mutant_worlds import CUT, PATTERNS, RESTED
from tests.support.simulation.frame.seeds import digests, run_worlds
from tests.support.simulation.groups.group_simulation import GROUPS, SLICES

WORLDS = 40
"""Worlds with seeds in a row: `make simulate` runs more."""
OUTAGES = 12
"""Worlds with little else than long outages of the coordinators."""
RESTS = 16
"""Worlds with little else than pauses of groups, and lost assignments."""
MATCHED = 12
"""Worlds in which members subscribe by patterns."""
SLICED = 10
"""Worlds in which partitions are cut into slices, whose number changes; `make simulate` runs more, with every fault."""
FOUND = (1959, 3200, 4710, 8149, 8413, 8415, 8437, 8651)
"""Seeds in which a rule was broken once, by the core or in the eyes of a checker."""
FOUND_IN_SLICES = (681, 715)
"""The same, of worlds in which partitions are cut into slices."""
FOUND_IN_OUTAGES = (20, 100, 117, 120, 152)
"""The same, of those outages: messages were skipped (20, 100, 152), or a checker was wrong."""
MATCHED_IN_OUTAGES = (0, 1, 2, 11, 52, 358)
"""Seeds of those outages with members that subscribe by patterns; in 11, 52 and 358, a queue that came back without an
offset began at a later place than before: messages were skipped."""


def test_the_rules_hold_in_every_world(tell):
    """A failing world is shrunk and told; `python -m tests.simulation.simulate --from SEED --seeds 1` runs it again."""
    happened, worlds = run_worlds(GROUPS.live, WORLDS, FOUND)
    tell(GROUPS.coverage(happened, worlds))
    assert GROUPS.kinds.keys() <= happened.keys()


def test_nobody_reads_with_another_after_long_outages_in_the_middle_of_hand_overs():
    """Coordinators are away for two to six sessions, again and again, and publish parts of batches before and after."""
    faults = ("outage",) * 6 + ("wish", "leave", "route", "crash", "slow", "kill")
    named = [(seed, False) for seed in (*range(OUTAGES), *FOUND_IN_OUTAGES)]
    for seed, patterns in (*named, *((seed, True) for seed in MATCHED_IN_OUTAGES)):
        plan = GROUPS.draw(seed, only=faults, chaos_ms=240_000, is_raised=True, patterns=patterns)
        found = GROUPS.broken(GROUPS.world(plan).run())
        assert not found, GROUPS.tell(GROUPS.shrink(plan, found[0].rule))


def test_a_group_that_was_paused_reads_on_whatever_its_members_have_not_heard():
    """Assignments are lost for ever, read late, or not at all."""
    for seed in range(RESTS):
        plan = GROUPS.draw(seed, **RESTED)
        found = GROUPS.broken(GROUPS.world(plan).run())
        assert not found, GROUPS.tell(GROUPS.shrink(plan, found[0].rule))


def test_members_agree_on_the_topics_of_their_patterns_whatever_an_observer_has_not_seen():
    """Topics appear and vanish, patterns change member by member, and lists of topics come late or not at all."""
    for seed in range(MATCHED):
        faults = {**PATTERNS, "only": (*PATTERNS["only"], "kill", "dark", "crash", "restore", "behind")}
        plan = GROUPS.draw(seed, **faults)
        assert plan.by_pattern
        found = GROUPS.broken(GROUPS.world(plan).run())
        assert not found, GROUPS.tell(GROUPS.shrink(plan, found[0].rule))


def test_messages_of_a_key_are_handled_once_and_in_order_while_the_number_of_slices_changes():
    """Members come and go meanwhile, offsets are reset, and the coordinator loses its state."""
    for seed in range(SLICED):
        plan = SLICES.draw(seed, **{**CUT, "only": (*CUT["only"], "reset", "kill", "loss", "outage", "slow")})
        found = SLICES.broken(SLICES.world(plan).run())
        assert not found, SLICES.tell(SLICES.shrink(plan, found[0].rule))
    run_worlds(SLICES.live, 0, FOUND_IN_SLICES)


def test_a_seed_is_a_world_whatever_the_hash_seed():
    """Or a failing seed could not be looked at."""
    first, second = digests(
        "from tests.support.simulation.groups.group_simulation import GROUPS as simulation;"
        "worlds = [simulation.world(simulation.draw(seed)).run() for seed in (7, 99)];"
        "said = [([(one.encoded, one.saved) for one in world.coordinators], world.seen.handlings, world.broker.log)"
        "        for world in worlds]"
    )

    assert first == second


def test_without_faults_nobody_leaves_and_nothing_is_handled_twice():
    """What the checkers excuse must come from faults, or they would excuse too much."""
    world = GROUPS.world(GROUPS.draw(3, only=(), chaos_ms=120_000, eager=False)).run()

    assert world.seen.drops == []
    handled = [(one.scope, one.queue, one.offset) for one in world.seen.handlings]
    assert len(handled) == len(set(handled))
