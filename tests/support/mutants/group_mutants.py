"""All mutants of groups and their clients, and those of them that no world shows."""

from tests.support.mutants import client_mutants, handover_mutants, membership_mutants, operator_mutants, slices_mutants

MUTANTS = (
    *handover_mutants.MUTANTS,
    *membership_mutants.MUTANTS,
    *operator_mutants.MUTANTS,
    *client_mutants.MUTANTS,
    *slices_mutants.MUTANTS,
)

UNSEEN = {
    "client obeys an older epoch": "redundant: a shard numbers what it decides, which tells what is outdated already",
    # Found before the protocol of one live instance per client; the worlds have to be chosen again.
    "a loss lasts as long as settings say": "no world of 40 has a session that only a heartbeat tells and needs it",
    "who hears nothing is kept": "who hears again reads again before the calm ends; the stories deaf*.txt find it",
    "nobody is probed": "a client notices by itself that it hears nothing; tests/unit/test_rounds.py finds it",
    "proof once is proof for ever": "nobody hears late for so long here; tests/unit/test_rounds.py finds it",
    "the timer does not look": "no world of 40 has a preference that only the timer brings to effect",
    "nobody looks at the others when the oldest goes": "no world of 40 has a conflict that ends by that alone",
    "client ignores a fence": "a client gives up before its session ends, so that a fence finds nothing to drop",
    "the first commit forgets what is done": "no slice is so far ahead of others here; the story slices.txt finds it",
    "a late cancel counts": "no world of 40 has a cancel that comes after the next pull of its client",
}
"""Mutants that no world has found so far, and why: the code is redundant there, or the worlds are too kind."""
