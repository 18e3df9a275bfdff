"""Does a client notice that its inbox does not come?  It would keep queues that it was told to give up."""

from wakeroll.inbox_lag import Hearing

SESSION_MS = 45_000


def test_an_inbox_in_which_nothing_happens_is_heard():
    hearing = Hearing(7, 0)
    for now_ms in range(0, 600_000, 5_000):
        hearing.look(7, now_ms)

        assert not hearing.is_deaf(now_ms, SESSION_MS)


def test_an_inbox_whose_end_nobody_tells_is_not_heard():
    """Its partition has no leader, or may not be read."""
    hearing = Hearing(7, 0)
    hearing.look(7, 10_000)
    for now_ms in range(15_000, 60_000, 5_000):
        hearing.look(None, now_ms)

    assert not hearing.is_deaf(55_000, SESSION_MS)
    assert hearing.is_deaf(55_001, SESSION_MS)


def test_records_that_are_there_and_do_not_come_are_noticed():
    hearing = Hearing(7, 0)
    hearing.look(9, 10_000)
    for now_ms in range(15_000, 60_000, 5_000):
        hearing.look(now_ms, now_ms)

    assert hearing.is_deaf(60_000, SESSION_MS)


def test_a_process_that_was_suspended_begins_again():
    """It could not have read; whether its session is over is another question."""
    hearing = Hearing(7, 0)

    hearing.look(50, 600_000)

    assert not hearing.is_deaf(600_000, SESSION_MS)
    hearing.look(60, 610_000)
    assert hearing.is_deaf(645_001, SESSION_MS)


def test_a_reader_that_is_behind_a_busy_partition_still_hears():
    """The end moves on; what counts is that it gets as far as an end that it saw."""
    hearing = Hearing(0, 0)
    for number in range(1, 100):
        hearing.look(number * 1_000, number * 5_000)
        hearing.next_offset = number * 1_000 - 10

    assert not hearing.is_deaf(100 * 5_000, SESSION_MS)


def test_records_that_were_deleted_before_they_were_read_are_not_waited_for():
    """As by a short retention, while the process was frozen; nothing may come after them for a long time."""
    hearing = Hearing(7, 0)
    for now_ms in range(5_000, 600_000, 5_000):
        hearing.look(57, now_ms, first=57)

        assert not hearing.is_deaf(now_ms, SESSION_MS)


def test_records_behind_the_deleted_ones_are_waited_for():
    hearing = Hearing(7, 0)
    for now_ms in range(5_000, 60_000, 5_000):
        hearing.look(58, now_ms, first=57)

    assert hearing.is_deaf(60_000, SESSION_MS)


def test_an_inbox_that_ends_before_the_position_is_not_heard():
    """It was deleted and created again; nothing of the present one was read, however much it grows."""
    hearing = Hearing(57, 0)
    for now_ms in range(5_000, 50_000, 5_000):
        hearing.look(now_ms // 5_000, now_ms)

    assert not hearing.is_deaf(45_000, SESSION_MS)
    assert hearing.is_deaf(45_001, SESSION_MS)


def test_an_inbox_that_is_read_from_its_start_is_heard_when_its_end_is_reached():
    hearing = Hearing(57, 0)
    hearing.begin(0)
    for now_ms in range(5_000, 50_000, 5_000):
        hearing.look(5, now_ms)

    assert hearing.is_deaf(46_000, SESSION_MS)
    hearing.next_offset = 5
    hearing.look(5, 47_000)
    assert not hearing.is_deaf(47_000, SESSION_MS)
