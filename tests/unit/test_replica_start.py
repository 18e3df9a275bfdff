"""Where a replica begins: with a snapshot of the era that the others decide in, or not at all."""

import pytest
from pyspark.sql import Row

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.recovery.initial_state import Beginning, Log
from wakeroll_pipeline.recovery.published_decisions import NOTHING, Reached
from wakeroll_pipeline.recovery.replica_start import _beginning, _Found

PLACE = ("wakeroll.groups", 3)
SNAPSHOT = Row(offset=99, era=2, version=4, body=bytearray(b"state"))


def test_a_replica_continues_behind_the_snapshot_and_withholds_settled_decisions():
    begun = _beginning(PLACE, _Found(SNAPSHOT, Log(50, 200), Reached(2, 17)))

    assert begun == Beginning(offset=100, era=2, body=b"state", published_seq=17)


def test_nothing_is_withheld_in_an_era_without_decisions():
    assert _beginning(PLACE, _Found(SNAPSHOT, Log(50, 200), Reached(1, 17))).published_seq == 0


def test_without_snapshots_a_replica_reads_a_complete_log():
    assert _beginning(PLACE, _Found(None, Log(0, 200), NOTHING)) == Beginning()


@pytest.mark.parametrize(
    ("snapshot", "its_log", "reached", "sentence"),
    [
        (None, Log(7, 200), NOTHING, "there is no snapshot of groups-3, and its log begins at offset 7 in era 1"),
        (None, Log(0, 200), Reached(2, 0), "there is no snapshot of groups-3, and its log begins at offset 0 in era 2"),
        (SNAPSHOT, Log(50, 200), Reached(3, 0), "groups-3 is in era 3, but its newest snapshot is of era 2"),
        (SNAPSHOT, Log(120, 200), Reached(2, 0), "Kafka no longer has the records 100 to 119 of wakeroll.groups-3"),
        (SNAPSHOT, Log(0, 60), Reached(2, 0), "wakeroll.groups-3 ends at 60, before the newest snapshot of groups-3"),
    ],
)
def test_a_state_that_the_log_does_not_continue_is_refused(snapshot, its_log, reached, sentence):
    with pytest.raises(InvalidUsage) as told:
        _beginning(PLACE, _Found(snapshot, its_log, reached))

    assert sentence in str(told.value)
