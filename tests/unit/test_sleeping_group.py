"""When workers of a sleeping group are started: the rules, without Kafka and without processes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model.queue import Queue
from wakeroll_model.sleeping_group import (
    FRUITLESS,
    RECHECK_MS,
    SETTLE_MS,
    STUCK_MS,
    UNKNOWN_MS,
    SleepingGroup,
    WakeRules,
)
from wakeroll_model.slices import cut

A, B, C = (Queue("orders", "", number) for number in range(3))


def empty_group(**rules: int) -> SleepingGroup:
    """Return a group that had members, and has none now."""
    group = SleepingGroup(WakeRules(**rules), asleep_since_ms=0)
    group.has_members(0, 0)
    return group


def queues(group: SleepingGroup, now_ms: int) -> tuple[Queue, ...] | None:
    wanted = group.wanted(now_ms)
    return None if wanted is None else wanted.queues


def test_a_message_starts_one_worker_and_the_next_one_another():
    group = empty_group()
    group.committed(A, 10, 0)
    assert group.asleep([A, B]) == {A: 10, B: 0}
    assert queues(group, 0) is None

    group.grown(A, 11, 0, 100)
    assert queues(group, 100) == (A,)
    assert group.asleep([A, B]) == {B: 0}
    group.started()
    assert queues(group, 100) is None

    group.has_members(1, 200)
    group.committed(A, 11, 300)
    group.has_members(0, 400)
    assert group.ended(succeeded=True, now_ms=500) == 0
    assert queues(group, 500) is None
    assert group.asleep([A]) == {A: 11}

    group.grown(A, 12, 0, 600)
    assert queues(group, 600) == (A,)


def test_a_group_with_members_reads_its_messages_itself():
    group = empty_group()
    group.has_members(1, 0)
    group.grown(A, 1, 0, 0)
    assert queues(group, STUCK_MS - 1) is None
    group.committed(B, 1, 10)

    assert queues(group, STUCK_MS) == (A,), "its members are gone, and no decision says so"


def test_nobody_knows_whether_there_are_members():
    """The decisions about a group that has not changed for a week are deleted; it may be at work."""
    group = SleepingGroup(WakeRules(), asleep_since_ms=0)
    group.grown(A, 9, 0, 0)
    assert queues(group, UNKNOWN_MS - 1) is None
    group.committed(A, 5, UNKNOWN_MS - 1)
    assert queues(group, UNKNOWN_MS) is None

    assert queues(group, 2 * UNKNOWN_MS) == (A,)


def test_a_message_that_waits_for_a_retry_starts_a_worker_when_it_is_due():
    group = empty_group()
    group.grown(A, 1, 30_000, 0)
    assert queues(group, 29_999) is None
    assert queues(group, 30_000) == (A,)


def test_the_pause_doubles_while_workers_fail_and_is_short_again_after_progress():
    group = empty_group(first_backoff_ms=1_000, longest_backoff_ms=5_000)
    group.grown(A, 9, 0, 0)
    pauses, now_ms = [], 0
    for _ in range(5):
        group.started()
        pause_ms = group.ended(succeeded=False, now_ms=now_ms)
        pauses.append(pause_ms)
        assert queues(group, now_ms + pause_ms - 1) is None
        now_ms += pause_ms
        assert queues(group, now_ms) == (A,)
    assert pauses == [1_000, 2_000, 4_000, 5_000, 5_000]

    group.started()
    group.committed(A, 3, now_ms)
    assert group.ended(succeeded=False, now_ms=now_ms) == 1_000


def end_without_progress(group: SleepingGroup, now_ms: int) -> int:
    """Let workers end until none is wanted; return how many there were."""
    for count in range(100):
        moment_ms = next((at for at in range(now_ms, now_ms + 60_000, 500) if group.wanted(at)), None)
        if moment_ms is None:
            return count
        now_ms = moment_ms
        group.started()
        group.has_members(1, now_ms)
        group.has_members(0, now_ms)
        group.ended(succeeded=True, now_ms=now_ms)
    raise AssertionError("workers are started for ever")


def test_workers_that_find_nothing_to_do_are_not_started_for_ever():
    """The record that ends a transaction is behind the last message; nobody commits it."""
    group = empty_group()
    group.grown(A, 10, 0, 0)
    group.started()
    group.committed(A, 9, 100)
    group.ended(succeeded=True, now_ms=200)

    assert end_without_progress(group, 200) == FRUITLESS
    assert group.asleep([A]) == {A: 10}
    group.grown(A, 11, 0, 99_000)
    assert queues(group, 99_000) == (A,)


def test_a_worker_that_ended_too_early_is_started_again_although_its_commit_is_heard_late():
    group = empty_group()
    group.grown(A, 100, 0, 0)
    end_without_progress(group, 0)
    assert group.asleep([A]) == {A: 100}
    group.has_members(1, 60_200)
    group.committed(A, 10, 60_300)
    group.has_members(0, 60_400)

    assert group.asleep([A]) == {A: 10}


def test_messages_count_again_when_a_member_expires():
    group = empty_group()
    group.grown(A, 3, 0, 0)
    end_without_progress(group, 0)
    assert group.asleep([A]) == {A: 3}

    group.member_expired()

    assert group.asleep([A]) == {A: 0}


def test_another_worker_is_at_work_so_its_messages_are_not_settled():
    group = empty_group(most_workers=2)
    group.grown(A, 3, 0, 0)
    group.grown(B, 3, 0, 0)
    group.started()
    group.started()
    group.has_members(2, 50)
    assert group.ended(succeeded=True, now_ms=100) == SETTLE_MS
    group.has_members(1, 100)
    assert queues(group, 100) is None
    group.ended(succeeded=False, now_ms=20_000)
    group.has_members(0, 20_000)

    assert queues(group, 60_000) == (A, B)


def test_as_many_workers_as_queues_with_messages_and_no_more_than_allowed():
    group = empty_group(most_workers=2)
    for queue in (A, B, C):
        group.grown(queue, 1, 0, 0)
    for _ in range(2):
        assert queues(group, 0) == (A, B, C)
        group.started()
    assert queues(group, 0) is None
    group.committed(A, 1, 0)
    group.committed(B, 1, 0)
    group.ended(succeeded=True, now_ms=0)

    assert queues(group, SETTLE_MS) is None, "one queue, and one worker is at work"


def test_a_worker_joins_before_the_group_is_forgotten():
    group = empty_group(longest_sleep_ms=1_000)
    group.committed(A, 5, 0)
    assert queues(group, 999) is None
    assert queues(group, 1_000) == ()
    group.started()
    assert queues(group, 5_000) is None
    group.ended(succeeded=True, now_ms=5_000)
    assert queues(group, 5_999) is None


def test_an_offset_that_was_reset_counts():
    group = empty_group()
    group.committed(A, 10, 0)
    group.grown(A, 11, 0, 0)
    group.committed(A, 11, 0)

    group.committed(A, 2, 0)

    assert group.asleep([A]) == {A: 2}


def test_messages_that_are_deleted_need_no_worker():
    group = empty_group()
    group.found(A, first=50, end=50, delay_ms=0, now_ms=0)
    assert queues(group, 0) is None
    assert group.asleep([A]) == {A: 50}


ACTIONS = st.one_of(
    st.tuples(st.just("grown"), st.sampled_from([A, B]), st.integers(1, 5)),
    st.tuples(st.just("committed"), st.sampled_from([A, B]), st.integers(1, 5)),
    st.tuples(st.just("ended"), st.booleans(), st.none()),
)


@given(actions=st.lists(ACTIONS, max_size=30))
def test_unread_messages_always_get_a_worker_in_the_end(actions):
    """Whatever happened before: a message behind all others is read, by at most so many workers at a time."""
    group, now_ms = empty_group(most_workers=2), 0
    for what, subject, number in actions:
        now_ms += 1_000
        if what == "grown":
            group.grown(subject, number, 0, now_ms)
        elif what == "committed":
            group.committed(subject, number, now_ms)
        elif group.running:
            group.ended(succeeded=subject, now_ms=now_ms)
        if group.wanted(now_ms) is not None:
            group.started()
        assert group.running <= 2
    while group.running:
        group.ended(succeeded=True, now_ms=now_ms)

    group.grown(A, 99, 0, now_ms)

    assert A in (queues(group, now_ms + 600_000) or ())


@pytest.mark.parametrize("failures", [1, 100, 10_000])
def test_the_pause_is_bounded(failures):
    group = empty_group(longest_backoff_ms=300_000)
    for _ in range(failures):
        group.started()
        pause_ms = group.ended(succeeded=False, now_ms=0)
    assert pause_ms <= 300_000


def run_worker(group: SleepingGroup, now_ms: int) -> None:
    """Let a worker join, commit nothing, leave and end."""
    group.started()
    group.has_members(1, now_ms)
    group.has_members(0, now_ms)
    group.ended(succeeded=True, now_ms=now_ms)


def test_a_message_that_is_not_due_yet_is_not_settled_by_workers_for_others():
    """A retry in half an hour was lost if three workers read other queues in between."""
    group = empty_group()
    group.grown(A, 1, 1_800_000, 0)
    for number in range(1, 6):
        now_ms = number * 60_000
        group.grown(B, number, 0, now_ms)
        assert queues(group, now_ms) == (B,)
        group.started()
        group.has_members(1, now_ms)
        group.committed(B, number, now_ms)
        group.has_members(0, now_ms)
        group.ended(succeeded=True, now_ms=now_ms)
        assert queues(group, now_ms) is None

    assert queues(group, 1_800_000) == (A,)


def test_workers_that_never_joined_did_not_find_out_that_there_is_nothing_to_do():
    """Without a coordinator they end for want of messages; the pauses grow, and the last one is bounded."""
    group = empty_group(first_backoff_ms=1_000, longest_backoff_ms=60_000)
    group.grown(A, 1, 0, 0)
    starts, now_ms = 0, 0
    while now_ms < 3_600_000:
        if group.wanted(now_ms) is not None:
            group.started()
            group.ended(succeeded=True, now_ms=now_ms)
            starts += 1
        now_ms += 1_000

    assert 60 <= starts <= 70


def test_an_hour_after_workers_found_nothing_one_more_looks():
    """The messages may have been unreadable, because their partition had no leader."""
    group = empty_group()
    group.grown(A, 1, 0, 0)
    end_without_progress(group, 0)
    assert queues(group, RECHECK_MS - 1) is None

    assert queues(group, RECHECK_MS + 60_000) == (A,)
    run_worker(group, RECHECK_MS + 60_000)
    assert queues(group, RECHECK_MS + 60_100) is None
    assert queues(group, RECHECK_MS + 120_000) is None


def test_a_wrong_hint_does_not_hide_later_messages():
    """A producer announced an offset that the queue never reached."""
    group = empty_group()
    group.committed(A, 5, 0)
    group.grown(A, 1_000, 0, 0)
    end_without_progress(group, 0)
    assert group.asleep([A]) == {A: 1_000}

    group.found(A, first=0, end=5, delay_ms=0, now_ms=100_000)
    assert group.asleep([A]) == {A: 5}
    group.found(A, first=0, end=6, delay_ms=0, now_ms=200_000)
    assert queues(group, 200_000) == (A,)


def test_the_messages_of_a_recreated_topic_count_from_its_first_one():
    group = empty_group()
    group.committed(A, 100, 0)
    group.found(A, first=90, end=100, delay_ms=0, now_ms=0)
    assert queues(group, 0) is None

    group.found(A, first=0, end=3, delay_ms=0, now_ms=1_000)

    assert queues(group, 1_000) == (A,)


def test_a_deleted_topic_needs_no_worker():
    """A command that fails because of it would be repeated for ever."""
    group = empty_group()
    group.grown(A, 1, 0, 0)
    group.grown(B, 1, 0, 0)

    group.keep_only([B])

    assert queues(group, 0) == (B,)


def test_a_rest_that_live_members_do_not_commit_does_not_start_one_worker_after_another():
    """The record that ends a transaction is older than the longest session, and the members have nothing to do."""
    group = empty_group()
    group.has_members(1, 0)
    group.grown(A, 1, 0, 0)
    starts = 0
    for now_ms in range(STUCK_MS, STUCK_MS + 600_000, 1_000):
        if group.wanted(now_ms) is not None:
            starts += 1
            group.started()
            group.has_members(2, now_ms)
            group.has_members(1, now_ms)
            group.ended(succeeded=True, now_ms=now_ms)

    assert starts == 1


def test_the_worker_that_keeps_the_group_is_repeated_when_it_failed():
    """The next attempt half a week later would be too late: the group is forgotten by then."""
    group = empty_group(longest_sleep_ms=100_000, first_backoff_ms=1_000)
    assert queues(group, 100_000) == ()
    group.started()
    group.ended(succeeded=False, now_ms=100_500)

    assert queues(group, 101_500) == ()


def test_of_a_partition_in_slices_the_lowest_offset_counts_and_each_slice_may_have_a_worker():
    """Otherwise workers would be started for ever: nobody commits an offset of the whole partition."""
    group = SleepingGroup(WakeRules(most_workers=8), 0)
    group.has_members(0, 0)
    slices = cut(A, 4)
    for queue in slices:
        group.committed(queue, 10, 0)
    group.found(A, 0, 10, 0, 0)
    assert queues(group, 0) is None
    assert group.asleep([A]) == {A: 10}

    group.grown(A, 14, 0, 100)
    for _ in range(4):
        assert queues(group, 100) == (A,)
        group.started()
    assert queues(group, 100) is None, "no more workers than slices"

    for queue in slices[1:]:
        group.committed(queue, 14, 200)
    assert A not in group.asleep([A])
    group.committed(slices[0], 14, 300)
    assert group.asleep([A]) == {A: 14}

    group.committed(A, 14, 400)
    for queue in slices:
        group.committed(queue, None, 400)
    group.committed(A, 20, 500)
    assert group.asleep([A]) == {A: 20}
