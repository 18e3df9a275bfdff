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
    "a reset leaves what was done": "slices_reset",
    "a slice that was added is not known when its topic is whole again": "slices_added",
}
"""Mutants that no world has found so far -> a story in tests/scenarios that is told otherwise if one lives."""

_CLIENT, _BROADCASTING = "tests/unit/test_client.py", "tests/unit/test_broadcasting.py"
FOUND_BY_A_TEST = {
    "client obeys an older epoch": (_CLIENT, "test_an_older_epoch_is_not_obeyed"),
    "a queue that ends before it is read is begun by the policy": (
        _CLIENT,
        "test_whatever_ends_before_it_is_read_a_client_skips_nothing",
    ),
    "a pattern that changes is a topic that was left": (
        _CLIENT,
        "test_a_client_with_a_pattern_goes_on_where_it_was_whatever_changes",
    ),
    "what was done before a deletion is committed": (
        _CLIENT,
        "test_a_queue_that_drains_begins_at_first_again_without_a_commit_of_what_was_done_before",
    ),
    "a client that has left a queue undoes its reset": (
        _BROADCASTING,
        "test_a_client_that_has_left_a_queue_does_not_undo_its_reset",
    ),
    "a client that does not know of a reset undoes it": (
        _BROADCASTING,
        "test_a_client_that_leaves_a_queue_before_it_knows_of_a_reset_does_not_undo_it",
    ),
    "an added queue is forgotten with its client": (
        _BROADCASTING,
        "test_a_queue_that_was_added_starts_at_its_first_message_although_its_client_left_without_a_commit",
    ),
}
"""The others -> the file and the name of a test that fails if one lives. A shard numbers its decisions, so in a world
an older epoch never has a newer number; the others need long outages, and of a hundred worlds with these, one shows
them."""
