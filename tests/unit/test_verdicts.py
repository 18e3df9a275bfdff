"""Verdicts: each has a reason as a sentence, and none depends on how many messages are too many."""

import pytest

from wakeroll_pipeline.live.verdicts import (
    KINDS,
    SETTLED_MS,
    STORM_GAP_MS,
    WINDOW_MS,
    GroupFacts,
    QueueFacts,
    findings,
)

NOW_MS = 10_000_000


def verdict(**facts: object) -> str:
    return findings(GroupFacts(now_ms=NOW_MS, **{"members": 1, "lag": 0, **facts}))[0].kind


def reason(**facts: object) -> str:
    return findings(GroupFacts(now_ms=NOW_MS, **{"members": 1, "lag": 0, **facts}))[0].reason


def queue(**facts: object) -> QueueFacts:
    return QueueFacts(**{"name": "orders-3", "owner": "c1", "moved_ms": NOW_MS, **facts})


def test_a_group_without_lag_is_healthy():
    assert (verdict(), reason()) == ("healthy", "everything is consumed")


def test_a_lag_that_is_not_known_is_not_called_consumed():
    assert "not known" in reason(lag=None)


def test_a_group_without_members_is_empty_and_its_messages_wait():
    assert reason(members=0, lag=1_204) == "no members; 1,204 messages wait"


def test_a_million_messages_that_are_being_consumed_are_healthy():
    """No threshold: the lag fell a moment ago, and the oldest message is young."""
    busy = queue(lag=1_000_000, not_fallen_ms=NOW_MS - 5_000, behind_ms=NOW_MS - 30_000)

    assert verdict(lag=1_000_000, queues=[busy]) == "healthy"


def test_three_messages_that_nobody_commits_are_stalled():
    stuck = queue(lag=3, grown=2, moved_ms=NOW_MS - 3 * WINDOW_MS)

    assert (
        reason(lag=3, queues=[stuck]) == "orders-3 grew by 2 messages while nothing was committed, for 6 min; owner: c1"
    )


def test_a_queue_is_not_stalled_before_a_window_has_passed():
    assert verdict(lag=3, queues=[queue(lag=3, grown=2, moved_ms=NOW_MS - WINDOW_MS + 1)]) == "healthy"


def test_a_queue_that_does_not_grow_is_not_stalled():
    """Its owner may be working on the last message, or it waits for a retry."""
    assert verdict(lag=3, queues=[queue(lag=3, grown=0, moved_ms=0)]) == "healthy"


def test_a_queue_that_was_never_committed_is_stalled_when_it_grows():
    assert verdict(queues=[queue(lag=0, grown=9, moved_ms=NOW_MS - WINDOW_MS)]) == "stalled"


def test_a_lag_that_never_falls_is_behind():
    slow = queue(lag=90, not_fallen_ms=NOW_MS - 2 * WINDOW_MS, behind_ms=NOW_MS - 2 * WINDOW_MS)

    assert reason(lag=90, queues=[slow]) == "the lag of orders-3 has not fallen for 4 min: 90 messages wait"


def test_a_lag_that_falls_is_still_behind_while_old_messages_wait():
    late = queue(lag=90, not_fallen_ms=NOW_MS, behind_ms=NOW_MS - 7_500_000)

    assert reason(lag=90, queues=[late]) == "orders-3 is catching up; the oldest message waits for 2 h 5 min"


def test_a_queue_without_owner_is_reported_after_a_handover_would_be_over():
    free = queue(owner="", free_ms=NOW_MS - SETTLED_MS, why_free="no client in room b")

    assert reason(queues=[free]) == "orders-3 has no owner: no client in room b"
    assert verdict(queues=[queue(owner="", free_ms=NOW_MS - SETTLED_MS + 1)]) == "healthy"


def test_rebalances_close_to_each_other_are_a_storm_as_long_as_it_lasts():
    storm = [(NOW_MS - 90_000, "expire"), (NOW_MS - 60_000, "join"), (NOW_MS - 10_000, "expire")]

    assert reason(rebalances=storm) == "3 rebalances in the last 90 s (expire 2, join 1)"
    assert verdict(rebalances=storm[1:]) == "healthy"
    assert verdict(rebalances=[(at_ms - STORM_GAP_MS, trigger) for at_ms, trigger in storm]) == "healthy"


def test_a_client_id_of_two_processes_and_a_conflict_are_reported():
    both = {"duplicates": ["c1 is used by two processes"], "conflicts": ["c2: other topics"]}

    assert [one.kind for one in findings(GroupFacts(now_ms=NOW_MS, members=2, lag=0, **both))] == [
        "duplicate",
        "conflict",
    ]


def test_the_most_urgent_finding_comes_first():
    stuck = queue(lag=3, grown=2, moved_ms=0)

    assert verdict(queues=[stuck], conflicts=["c2: other topics"]) == "stalled"


@pytest.mark.parametrize("count", [4, 5])
def test_many_names_are_counted(count):
    free = [queue(name=f"orders-{number}", owner="", free_ms=0) for number in range(count)]

    assert reason(queues=free) == f"orders-0, orders-1, orders-2 and {count - 3} more have no owner"


def test_a_group_that_everybody_left_while_messages_wait_is_the_most_urgent_one():
    """Only a group in which nothing is known to wait is merely empty."""
    assert verdict(members=0, lag=1) == "abandoned"
    assert reason(members=0, lag=1) == "no members; 1 message waits"
    assert [verdict(members=0, lag=lag) for lag in (0, None)] == ["empty", "empty"]
    assert reason(members=0, lag=None, unknown=2) == "no members; the lag of 2 queues is not known"
    assert KINDS[0] == "abandoned"


def test_a_group_whose_members_may_not_have_been_heard_yet_is_not_abandoned():
    assert verdict(members=0, lag=1, is_learning=True) == "learning"


def test_a_group_that_was_not_watched_for_a_window_is_not_said_to_catch_up():
    late = queue(lag=7, behind_ms=NOW_MS - WINDOW_MS)

    assert reason(lag=7, queues=[late]) == "orders-3 is catching up; the oldest message waits for 2 min"
    assert reason(lag=7, watched_ms=0, queues=[late]) == (
        "orders-3 is behind, whether it is catching up is not known yet; the oldest message waits for 2 min"
    )


def test_a_queue_that_is_owned_without_a_committed_offset_is_a_finding_after_30_s():
    silent = queue(uncommitted_ms=NOW_MS - SETTLED_MS)

    assert verdict(lag=None, unknown=1, queues=[silent]) == "uncommitted"
    assert (
        reason(lag=None, unknown=1, queues=[silent])
        == "orders-3 has no committed offset, 30 s after the assignment; the lag is not known; owner: c1"
    )
    assert "; 7 messages wait; " in reason(lag=7, queues=[queue(uncommitted_ms=0, lag=7)])
    assert verdict(queues=[queue(uncommitted_ms=NOW_MS - SETTLED_MS + 1)]) == "healthy"


def test_what_is_not_known_is_not_called_consumed():
    assert reason(unknown=1) == "every queue has an owner; the lag of 1 queue is not known"
    assert reason(lag=4, unknown=2) == "4 messages wait, and are being consumed; the lag of 2 queues is not known"


def test_a_lag_that_was_not_watched_for_a_window_is_not_called_consumed():
    """As in `watch --once`, which sees one moment."""
    assert (
        reason(lag=4, watched_ms=WINDOW_MS - 1) == "4 messages wait; whether they are being consumed is not known yet"
    )
    assert reason(lag=4, watched_ms=WINDOW_MS) == "4 messages wait, and are being consumed"
    assert reason(lag=0, watched_ms=0) == "everything is consumed"


def test_a_paused_group_is_not_judged_by_its_lag():
    """Nothing is committed because an operator wants that; queues without an owner are still reported."""
    stuck = QueueFacts(name="orders-0", owner="c1", lag=7, grown=7, behind_ms=0, not_fallen_ms=0)
    free = QueueFacts(name="orders-1", free_ms=0)
    facts = GroupFacts(now_ms=10 * WINDOW_MS, members=1, lag=7, queues=[stuck, free], paused="paused by mia")

    assert [one.kind for one in findings(facts)] == ["unowned", "paused"]
    assert findings(facts)[1].reason == "paused by mia; 7 messages wait"
    empty = GroupFacts(now_ms=10 * WINDOW_MS, lag=7, paused="paused by mia")
    assert [one.kind for one in findings(empty)] == ["paused"]
