"""The history of a queue's end: a lag in messages becomes a lag in time, and what is not known is not invented."""

from hypothesis import given
from hypothesis import strategies as st

from wakeroll_pipeline.live.end_history import MOST, Behind, EndHistory


def history(*samples: tuple[int, int]) -> EndHistory:
    made = EndHistory()
    for at_ms, end in samples:
        made.note(end, at_ms)
    return made


def test_a_message_is_dated_between_the_ends_around_it():
    """Where 100 messages came in 10 s, the one in the middle came after 5 s."""
    assert history((10_000, 0), (20_000, 100)).behind(50) == Behind(15_000, is_longer=False)


def test_a_message_waits_from_the_last_moment_at_which_the_queue_ended_before_it():
    """The queue stood still for a minute: the next message came after that, not before."""
    assert history((0, 5), (60_000, 5), (70_000, 15)).behind(5) == Behind(60_000, is_longer=False)


def test_a_message_from_before_the_history_waits_for_longer_than_the_history():
    assert history((10_000, 100), (20_000, 200)).behind(40) == Behind(10_000, is_longer=True)


def test_nothing_waits_at_the_end_nor_beyond_it():
    """A commit is newer than the known end as often as not."""
    known = history((0, 10))

    assert known.behind(10) is None
    assert known.behind(11) is None
    assert EndHistory().behind(0) is None


def test_a_queue_that_ends_earlier_than_before_begins_a_new_history():
    """The topic was recreated: times of the old messages say nothing about the new ones."""
    known = history((0, 0), (10_000, 1_000), (20_000, 4))

    assert known.end == 4
    assert known.behind(2) == Behind(20_000, is_longer=True)


def test_a_log_time_that_steps_back_does_not_reorder_the_history():
    assert history((20_000, 10), (15_000, 20)).behind(15) == Behind(20_000, is_longer=False)


@given(st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 50)), min_size=1, max_size=300), st.integers(0, 20_000))
def test_a_bounded_history_never_dates_a_message_after_it_was_seen(steps, offset):
    """However it is thinned out, a message waits at least since the first moment at which the end was above it."""
    at_ms = end = 0
    known, seen_ms = EndHistory(), None
    for pause_ms, growth in steps:
        at_ms, end = at_ms + pause_ms, end + growth
        known.note(end, at_ms)
        if end > offset and seen_ms is None:
            seen_ms = at_ms
    found = known.behind(offset)

    assert (found is None) == (seen_ms is None)
    assert found is None or seen_ms is None or found.since_ms <= seen_ms
    assert len(known._ends) <= MOST
