"""The lag of one queue: commits come more often than ends, and only a fresh end shows whether the lag falls."""

from wakeroll_pipeline.live.end_history import EndHistory
from wakeroll_pipeline.live.queue_lag import QueueLag
from wakeroll_pipeline.live.queue_rates import NOT_KNOWN, Rates, rates_of_all


def lag_after(*steps: tuple[int, int | None, int | None]) -> QueueLag:
    """Return the lag after (log time, committed offset, end) in order; an end of None means no new one."""
    history, made = EndHistory(), QueueLag(0)
    for at_ms, committed, end in steps:
        if end is not None:
            history.note(end, at_ms)
        made.update(committed, history, at_ms)
    return made


def test_the_lag_is_not_known_without_a_committed_offset():
    """Where such a queue starts is a policy that only its client resolves."""
    made = lag_after((0, None, 100), (60_000, None, 160))

    assert made.lag is None
    assert made.grown == 60


def test_a_queue_that_grows_faster_than_it_is_consumed_does_not_seem_to_fall_between_two_ends():
    """Each commit comes nearer to the old end; at the next end the lag is larger than before."""
    made = lag_after((0, 0, 100), (20_000, 50, None), (40_000, 90, None), (60_000, 120, 300), (120_000, 240, 600))

    assert made.lag == 360
    assert made.not_fallen_ms == 0
    assert made.trend == "rising"


def test_a_lag_that_falls_begins_to_be_watched_again():
    made = lag_after((0, 0, 100), (60_000, 150, 200), (120_000, 290, 300))

    assert made.not_fallen_ms == 120_000
    assert made.trend == "falling"


def test_a_queue_that_is_consumed_to_its_end_has_no_trend():
    made = lag_after((0, 0, 100), (60_000, 200, 200))

    assert made.lag == 0
    assert made.not_fallen_ms is None


def test_messages_since_the_last_commit_are_counted():
    """A stalled queue is one that grows while its committed offset stays."""
    made = lag_after((0, 10, 100), (60_000, 10, 150), (120_000, 10, 180))

    assert made.grown == 80
    assert made.moved_ms == 0


def test_without_a_committed_offset_the_lag_is_known_if_the_owner_begins_at_the_first_message():
    history = EndHistory()
    history.note(100, 0)
    history.first = 40
    made = QueueLag(0)
    made.update(None, history, 1_000, from_first=True)

    assert made.lag == 60
    assert made.behind is not None


def test_a_queue_without_messages_has_no_lag_whatever_its_owner_does():
    history = EndHistory()
    history.note(40, 0)
    history.first = 40
    made = QueueLag(0)
    made.update(None, history, 1_000)

    assert made.lag == 0


def test_a_lag_vanishes_with_its_committed_offset():
    """Otherwise it would stay for ever: a topic was recreated, or the group's mode has changed."""
    history, made = EndHistory(), QueueLag(0)
    history.note(100, 0)
    made.update(5, history, 1_000)
    assert made.lag == 95
    made.update(None, history, 2_000)

    assert (made.lag, made.behind, made.not_fallen_ms, made.samples) == (None, None, None, [])


def test_rates_are_those_between_moments_with_a_fresh_end():
    """Ten messages arrive per second, and twelve are consumed: a lag of 480 is consumed in four minutes."""
    made = lag_after(*((second * 1_000, second * 12, 600 + second * 10) for second in range(0, 61, 10)))

    assert made.lag == 480
    assert made.rates == Rates(10.0, 12.0, 240_000)


def test_a_lag_that_does_not_fall_has_no_time_to_catch_up():
    made = lag_after((0, 0, 100), (30_000, 0, 200), (60_000, 0, 300))

    assert made.rates == Rates(3.3, 0.0, None)


def test_the_rates_are_those_of_the_last_minutes():
    """Half an hour ago, the group was fast."""
    fast = [(minute * 60_000, minute * 600, 10_000 + minute) for minute in range(30)]
    slow = [(minute * 60_000, 18_000, 20_000 + minute) for minute in range(30, 40)]

    assert lag_after(*fast, *slow).rates.consumed_per_s == 0.0


def test_a_reset_to_an_earlier_message_is_no_negative_rate():
    made = lag_after((0, 50, 100), (30_000, 90, 130), (60_000, 10, 160))

    assert made.rates == Rates(None, None, None)


def test_all_queues_have_caught_up_when_the_slowest_has():
    parts = [Rates(1.0, 3.0, 5_000), Rates(2.0, 2.5, 60_000)]

    assert rates_of_all(100, parts) == Rates(3.0, 5.5, 60_000)
    assert rates_of_all(100, [*parts, Rates(1.0, 0.0, None)]).catch_up_ms is None
    assert rates_of_all(100, [*parts, NOT_KNOWN]) == Rates(3.0, 5.5, 60_000)
    assert rates_of_all(None, []) == NOT_KNOWN
