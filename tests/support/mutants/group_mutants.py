"""All mutants of groups and their clients, and what finds those that no world shows."""

from tests.support.mutants import client_mutants, handover_mutants, membership_mutants, operator_mutants, slices_mutants

MUTANTS = (
    *handover_mutants.MUTANTS,
    *membership_mutants.MUTANTS,
    *operator_mutants.MUTANTS,
    *client_mutants.MUTANTS,
    *slices_mutants.MUTANTS,
)

FOUND_BY_A_STORY = {
    "a loss lasts as long as settings say": "lost_state_long_session",
    "who hears nothing is kept": "deaf",
    "nobody is probed": "deaf_rounds",
    "proof once is proof for ever": "deaf_progress",
    "the timer does not look": "timer",
    "nobody looks at the others when the oldest goes": "conflict_strategy",
    "the first commit forgets what is done": "slices",
    "a late cancel counts": "hold_cancelled",
}
"""Mutants that no world has found so far -> a story in tests/scenarios that is told otherwise if one lives."""

FOUND_BY_A_TEST = {"client obeys an older epoch": ("tests/unit/test_client.py", "test_an_older_epoch_is_not_obeyed")}
"""The others -> the file and the name of a test that fails if one lives. A shard numbers its decisions, so in a world
an older epoch never has a newer number."""
