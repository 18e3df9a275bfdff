"""The clock of a shard: time is what the ticks of the log say, and it is kind to whoever could not be heard."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.clock import Moment, ShardClock


def read_all(*records: tuple[int, str]) -> list[int]:
    """Return what the clock shows at each of these records: (log time, tick or event)."""
    clock = ShardClock()
    return [clock.read(at_ms, tick=kind == "tick").now_ms for at_ms, kind in records]


def test_the_clock_starts_with_the_first_record():
    """Whatever the first record is: a shard need not wait for a tick to serve its clients."""
    assert read_all((5_000, "event"), (5_300, "tick"), (6_300, "tick")) == [5_000, 5_300, 6_300]


def test_between_ticks_time_goes_on_with_the_records():
    assert read_all((1_000, "tick"), (1_250, "event"), (1_900, "event"), (2_000, "tick")) == [
        1_000,
        1_250,
        1_900,
        2_000,
    ]


def test_a_dark_log_moves_the_clock_by_five_seconds_at_most():
    """Broker down for ten minutes: nobody could be heard, so nobody was silent for ten minutes."""
    assert read_all((0, "tick"), (600_000, "tick"), (601_000, "tick")) == [0, 5_000, 6_000]


def test_an_event_after_a_dark_log_moves_the_clock_by_five_seconds_at_most():
    """The first heartbeat comes before the first tick: it must not jump either."""
    assert read_all((0, "tick"), (600_000, "event"), (600_100, "tick"), (600_400, "event")) == [
        0,
        5_000,
        5_000,
        5_300,
    ]


def test_a_leaders_clock_that_is_set_back_does_not_turn_time_back():
    assert read_all((10_000, "tick"), (3_000, "event"), (4_000, "tick"), (4_500, "event"), (5_000, "tick")) == [
        10_000,
        10_000,
        10_000,
        10_500,
        11_000,
    ]


def test_a_clock_set_back_before_the_next_tick_keeps_what_it_showed():
    """The latest time given out stands until the ticks have caught up with it."""
    assert read_all((0, "tick"), (4_000, "event"), (1_000, "tick"), (2_000, "tick"), (5_000, "tick")) == [
        0,
        4_000,
        4_000,
        4_000,
        5_000,
    ]


@pytest.mark.parametrize(
    ("gap_ms", "expected"), [(5_000, True), (5_001, False)], ids=["5 s is slow", "more than 5 s is dark"]
)
def test_a_gap_of_more_than_five_seconds_is_dark(gap_ms, expected):
    clock = ShardClock()
    clock.read(0, tick=True)

    assert clock.read(gap_ms, tick=True) == Moment(5_000, gap_ms, expected)


def test_nobody_expires_for_fifteen_seconds_after_a_dark_log():
    """The clients are reconnecting, and the broker is busy with all of them."""
    clock = ShardClock()
    clock.read(0, tick=True)

    moments = [clock.read(100_000 + second * 1_000, tick=True) for second in range(17)]

    assert [second for second, moment in enumerate(moments) if moment.may_expire] == [15, 16]


@given(records=st.lists(st.tuples(st.integers(0, 2**41), st.booleans()), min_size=1))
def test_the_clock_never_falls_and_never_outruns_the_records(records):
    """Whatever the log says; each record adds five seconds at most."""
    clock = ShardClock()

    shown = [clock.read(at_ms, tick=tick).now_ms for at_ms, tick in records]

    assert shown[0] == records[0][0]
    steps = [later - earlier for earlier, later in pairwise(shown)]
    assert [step for step in steps if not 0 <= step <= 5_000] == []
