"""When snapshots are due: the records since the last ones are bounded, at any rate, and so is their price."""

import pytest

from wakeroll_pipeline.cli.settings_sources import load
from wakeroll_pipeline.jobs.snapshot_schedule import BYTES_PER_RECORD, FIRST_MS, LOOK_MS, SHARE, SnapshotSchedule
from wakeroll_pipeline.settings import InvalidSettings, Settings

START_MS = 1_700_000_000_000
SETTINGS = Settings(snapshot_records=10_000)


class Log:
    """A schedule whose first snapshots were taken at the start and cost nothing, and the progress of both jobs."""

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.schedule = SnapshotSchedule(settings, START_MS)
        self.decided = 0
        """Records that the states in the checkpoint include."""
        self.take(START_MS, START_MS)

    def grow(self, records: int, *, decided: int | None = None) -> None:
        """Let both jobs process so many records; if `decided` is given, the coordinator so many."""
        self.schedule.count(records)
        self.decided += records if decided is None else decided

    def take(self, began_ms: int, ended_ms: int, state_bytes: int = 0) -> None:
        self.schedule.begin(began_ms, self.decided)
        self.schedule.end(began_ms, ended_ms, state_bytes)

    def is_due(self, now_ms: int) -> bool:
        return self.schedule.is_due(now_ms, lambda: self.decided)


def test_the_first_snapshots_are_due_a_minute_after_the_start():
    """Until then a lost checkpoint cannot be restored."""
    schedule = SnapshotSchedule(SETTINGS, START_MS)

    assert not schedule.is_due(START_MS + FIRST_MS - 1, lambda: 0)
    assert schedule.is_due(START_MS + FIRST_MS, lambda: 0)


def test_a_short_interval_holds_for_the_first_snapshots_too():
    schedule = SnapshotSchedule(Settings(snapshot_interval_ms=5_000), START_MS)

    assert not schedule.is_due(START_MS + 4_999, lambda: 0)
    assert schedule.is_due(START_MS + 5_000, lambda: 0)


def test_without_many_records_snapshots_are_due_once_per_interval():
    log = Log()
    log.grow(9_999)

    assert not log.is_due(START_MS + SETTINGS.snapshot_interval_ms - 1)
    assert log.is_due(START_MS + SETTINGS.snapshot_interval_ms)


def test_many_records_make_snapshots_due_at_once():
    """A reader of the state applies the records since: at 10,000 per second, there are 6,000,000 in ten minutes."""
    log = Log()
    for _ in range(4):
        log.grow(2_500)

    assert log.is_due(START_MS + 1)


def test_the_records_that_are_written_while_snapshots_are_taken_count_for_the_next_ones():
    """The states are of the checkpoint before."""
    log = Log()
    log.grow(15_000)
    log.schedule.begin(START_MS + 1_000, log.decided)
    log.grow(9_999)
    log.schedule.end(START_MS + 1_000, START_MS + 1_000, state_bytes=0)

    assert not log.is_due(START_MS + 2_000)
    log.grow(1)
    assert log.is_due(START_MS + 2_000)


def test_snapshots_that_take_long_are_not_due_all_the_time():
    """On a machine that cannot keep up, each snapshot would delay the next batches, and make the next one due."""
    log = Log()
    log.take(START_MS, START_MS + 700)
    log.grow(1_000_000)

    assert not log.is_due(START_MS + SHARE * 700 - 1)
    assert log.is_due(START_MS + SHARE * 700)


def test_the_states_of_a_coordinator_that_does_not_move_are_not_read_again_and_again():
    """It may catch up with a backlog in large batches, while `record` writes each few seconds."""
    log = Log()
    log.grow(50_000, decided=0)

    assert not log.is_due(START_MS + 1)
    log.grow(0, decided=5_000)
    assert not log.is_due(START_MS + LOOK_MS)
    assert log.is_due(START_MS + 1 + LOOK_MS)


def test_a_large_state_is_stored_after_more_records():
    """Otherwise the snapshots would take more room than the records whose repetition they save."""
    log = Log()
    log.take(START_MS, START_MS, state_bytes=30_000 * BYTES_PER_RECORD)
    log.grow(29_999)

    assert not log.is_due(START_MS + 1)
    log.grow(1)
    assert log.is_due(START_MS + 1)


def test_a_state_that_has_become_small_is_stored_as_often_as_the_setting_says():
    log = Log()
    log.take(START_MS, START_MS, state_bytes=30_000 * BYTES_PER_RECORD)
    log.take(START_MS, START_MS, state_bytes=100)
    log.grow(10_000)

    assert log.is_due(START_MS + 1)


def test_snapshots_that_failed_are_due_again_after_an_interval():
    """They are not tried in each round of the loop."""
    log = Log()
    log.grow(10_000)
    log.schedule.begin(START_MS + 1, log.decided)

    assert not log.is_due(START_MS + SETTINGS.snapshot_interval_ms)
    assert log.is_due(START_MS + 1 + SETTINGS.snapshot_interval_ms)


@pytest.mark.parametrize("records", ["999", "10000001"])
def test_the_number_of_records_has_bounds(records):
    with pytest.raises(InvalidSettings, match="snapshot_records"):
        load({"WAKEROLL_SNAPSHOT_RECORDS": records})
