"""The clock of a shard: time is what observers saw pass, and it is kind to whoever could not be heard."""

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wakeroll_model.config import CLIENT_MARGIN_MS, SLACK_MS
from wakeroll_model.events import Tick
from wakeroll_model.shard_clock import Moment, ShardClock

EVENT = None


def tick(uptime_ms: int | None = None, observer: str = "o") -> Tick:
    return Tick(observer=observer, uptime_ms=uptime_ms)


def read_all(*records: tuple[int, Tick | None]) -> list[int]:
    """Return what the clock shows at each of these records: (log time, tick or event)."""
    clock = ShardClock()
    return [clock.read(at_ms, what).now_ms for at_ms, what in records]


def test_the_clock_starts_with_the_first_record():
    """Whatever the first record is: a shard need not wait for a tick to serve its clients."""
    assert read_all((5_000, EVENT), (5_300, tick(7)), (6_300, tick(1_007))) == [5_000, 5_300, 6_300]


def test_between_ticks_time_goes_on_with_the_records():
    assert read_all((1_000, tick(0)), (1_250, EVENT), (1_900, EVENT), (2_000, tick(1_000))) == [
        1_000,
        1_250,
        1_900,
        2_000,
    ]


def test_a_dark_log_moves_the_clock_by_three_seconds_at_most():
    """Broker down for ten minutes: nobody could be heard, so nobody was silent for ten minutes."""
    assert read_all((0, tick(0)), (600_000, tick(600_000)), (601_000, tick(601_000))) == [0, 3_000, 4_000]


def test_an_event_after_a_dark_log_moves_the_clock_by_two_seconds_at_most():
    """The first heartbeat comes before the first tick: it must not jump either."""
    records = ((0, tick(0)), (600_000, EVENT), (600_100, tick(600_100)), (600_400, EVENT))

    assert read_all(*records) == [0, 2_000, 3_000, 3_300]


@pytest.mark.parametrize("step_ms", [1_000, 4_000, 4_999, 60_000, -700, -60_000])
def test_a_leaders_clock_that_is_set_forth_or_back_does_not_change_how_fast_time_goes(step_ms):
    """The client's own clock does not follow it: were it counted, a queue would have two readers."""
    before = [(second * 1_000, tick(second * 1_000)) for second in range(5)]
    after = [(second * 1_000 + step_ms, tick(second * 1_000)) for second in range(5, 20)]

    assert read_all(*before, *after)[-1] == 19_000


def test_an_observer_that_starts_goes_on_where_the_clock_is():
    """A little below it, for its first tick may be late, and then it counts for less than it says."""
    begins = [(1_400 + 1_000 * second, tick(1_000 * second, "p")) for second in range(5)]

    assert read_all((0, tick(50)), (1_000, tick(1_050)), *begins) == [0, 1_000, 1_000, 1_000, 1_000, 2_000, 3_000]


def test_an_observer_that_was_suspended_goes_on_where_the_clock_is():
    """If the other one dies next, time must not stand still until the first one has made up for its sleep."""
    beside = [(1_000 * second, tick(1_000 * second, "p")) for second in range(100)]
    alone = [(99_500 + 1_000 * second, tick(1_000 * (1 + second), "o")) for second in range(6)]

    assert read_all(*beside[:1], (0, tick(0, "o")), *beside[1:], *alone)[-1] == 102_000


def test_observers_whose_ticks_are_late_do_not_drive_the_clock():
    """Two of them tick by turns, and each tick arrives at once or late: the clock never outruns real time."""
    made = [(500 * number, "op"[number % 2]) for number in range(200)]
    late_ms = [(0, 1_400, 700, 0, 0)[number % 5] for number in range(200)]
    arrived = sorted((at_ms + late, at_ms, name) for (at_ms, name), late in zip(made, late_ms, strict=True))
    shown = read_all(*((at_ms, tick(uptime_ms, name)) for at_ms, uptime_ms, name in arrived))

    assert all(clock_ms <= at_ms for clock_ms, (at_ms, *_) in zip(shown, arrived, strict=True))
    assert shown[-1] > 95_000


def test_a_tick_that_is_repeated_or_late_says_nothing():
    ticks = (tick(0), tick(1_000), tick(1_000), tick(500), tick(2_000))

    assert read_all(*zip((0, 1_000, 1_010, 1_020, 2_000), ticks, strict=True)) == [0, 1_000, 1_000, 1_000, 2_000]


def test_a_tick_without_an_uptime_counts_for_a_second_at_most():
    """As a log of release 0.1 has them: the log's clock may be wrong, and slow ticks must count for something."""
    slow = [(5_500 * number, Tick()) for number in range(11)]
    wrong = [(0, Tick()), (30_000, Tick()), (31_000, Tick()), (2_000, Tick()), (3_000, Tick())]

    assert read_all(*slow)[-1] == 10_000
    assert read_all(*wrong) == [0, 1_000, 2_000, 2_000, 3_000]


@pytest.mark.parametrize(
    ("gap_ms", "expected"), [(5_000, True), (5_001, False)], ids=["5 s is slow", "more than 5 s is dark"]
)
def test_a_gap_of_more_than_five_seconds_is_dark(gap_ms, expected):
    clock = ShardClock()
    clock.read(0, tick(0))

    assert clock.read(gap_ms, tick(gap_ms)) == Moment(3_000, gap_ms, expected, 3_000)


def test_a_log_clock_that_is_set_back_does_not_hide_that_the_log_was_dark():
    clock = ShardClock()
    clock.read(100_000, tick(0))

    assert not clock.read(90_000, tick(20_000)).may_expire


def test_nobody_expires_for_fifteen_seconds_after_a_dark_log():
    """The clients are reconnecting, and the broker is busy with all of them."""
    clock = ShardClock()
    clock.read(0, tick(0))

    moments = [clock.read(100_000 + s * 1_000, tick(100_000 + s * 1_000)) for s in range(17)]

    assert [second for second, moment in enumerate(moments) if moment.may_expire] == [15, 16]


@pytest.mark.parametrize("period_ms", [200, 1_000, 5_000, 5_500, 60_000])
def test_at_any_rate_of_ticks_time_passes_and_somebody_may_expire(period_ms):
    """An observer that is slow, or a log that is dark again and again, must not stop expiry for ever."""
    clock = ShardClock()

    moments = [clock.read(period_ms * number, tick(period_ms * number)) for number in range(1_000)]

    assert moments[-1].now_ms >= min(999 * period_ms, 999 * 3_000)
    assert sum(moment.may_expire for moment in moments) >= 750


def test_a_shard_remembers_so_many_observers_and_no_more():
    clock = ShardClock()
    for number in range(100):
        clock.read(number * 1_000, tick(5, f"o{number}"))

    assert list(clock.lines) == [f"o{number}" for number in range(84, 100)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.integers(0, 9_000),  # so much later, by a true clock
            st.integers(-(10**7), 10**7),  # how wrong the log's clock is
            st.booleans(),
        ),
        max_size=60,
    )
)
def test_the_clock_is_never_earlier_than_a_client_may_be_patient(records):
    """Real time is a bound, but for the slack between two ticks: a client gives up before that much of its session."""
    clock, real_ms, shown = ShardClock(), 0, []
    clock.read(10**9, EVENT)
    for observer, later_ms, wrong_ms, is_tick in records:
        real_ms += later_ms
        what = tick(real_ms, observer) if is_tick else EVENT
        shown.append((real_ms, clock.read(10**9 + real_ms + wrong_ms, what).now_ms - 10**9))

    # The log's time of the first record is all that the first tick has to count from.
    early_ms = max([now_ms - real_ms for real_ms, now_ms in shown], default=0)
    assert early_ms <= CLIENT_MARGIN_MS
    assert all(later >= before for (_, before), (_, later) in pairwise(shown))
    for (from_real, from_ms), (to_real, to_ms) in pairwise(shown):
        assert to_ms - from_ms <= (to_real - from_real) + CLIENT_MARGIN_MS


@given(
    happens=st.lists(
        st.tuples(
            st.integers(0, 8_000),  # so much later a tick is made, by a true clock
            st.integers(0, SLACK_MS),  # so late it is appended
            st.floats(0, 1),  # when between the two the heartbeat comes
            st.integers(-(10**6), 10**6),  # how wrong the log's clock is from then on
            st.sampled_from("op"),
        ),
        max_size=60,
    )
)
@example(happens=[(7_000, 2_000, 0.99, -5_000, "o"), (1_000, 0, 0.0, 0, "o")])
def test_a_session_is_never_over_before_its_client_has_given_up(happens):
    """However late a tick is, after however long a gap, whatever the log's clock does at that moment."""
    clock, made_ms, appended_ms, wrong_ms = ShardClock(), 0, 0, 0
    clock.read(10**9, EVENT)
    for name in "op":
        clock.read(10**9, tick(0, name))
    seen: list[tuple[int, int]] = []
    for later_ms, late_ms, between, wrong_ms, name in happens:
        made_ms += later_ms
        before_ms, appended_ms = appended_ms, max(appended_ms, made_ms + late_ms)
        sent_ms = before_ms + int(between * (appended_ms - before_ms))
        seen.append((sent_ms, clock.read(10**9 + sent_ms + wrong_ms, EVENT).now_ms))
        now_ms = clock.read(10**9 + appended_ms + wrong_ms, tick(made_ms, name)).now_ms
        assert all(now_ms - seen_ms <= appended_ms - sent_ms + CLIENT_MARGIN_MS for sent_ms, seen_ms in seen)


def test_a_log_that_is_ahead_does_not_end_a_session_earlier():
    """A record between two ticks shows the clock up to 2 s further; sessions are judged by the ticks."""
    clock = ShardClock()
    for second in range(5):
        clock.read(second * 1_000, tick(second * 1_000))

    assert clock.read(9_000, EVENT).now_ms == 6_000
    moment = clock.read(5_000, tick(5_000))
    assert (moment.now_ms, moment.judged_ms) == (6_000, 5_000)
