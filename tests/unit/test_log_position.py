"""Does a reader notice that a partition has another log than the one it read?"""

import pytest

from wakeroll.log_position import LONGEST_STILL_MS, LogPosition, TopicIdentity


def test_a_log_that_grows_is_the_same_log():
    position = LogPosition(5, 0)
    found = [position.look(0, 7, 0), position.read(5, 3, 1), position.read(6, 3, 1), position.read(9, 4, 2)]

    assert found == ["", "", "", ""]
    assert position.next_offset == 10


def test_a_log_that_ends_before_the_position_is_another_one():
    """The topic was deleted and created again, or the partition lost its tail."""
    assert LogPosition(57, 0).look(0, 40, 0) == "it ends at offset 40"
    assert LogPosition(57, 0).look(0, 57, 0) == ""


@pytest.mark.parametrize(("first", "end"), [(60, 60), (60, 70)], ids=["all", "some"])
def test_deleted_records_are_passed_over(first, end):
    """Retention is no loss of the log; nothing below the first offset is waited for."""
    position = LogPosition(57, 0)

    assert position.look(first, end, 0, was_refused=True) == ""
    assert position.next_offset == 60


def test_a_position_that_was_refused_although_nothing_is_deleted_was_behind_the_end():
    """The log has grown beyond the position between the refusal and the query; it is another one all the same."""
    assert LogPosition(57, 0).look(0, 90, 0, was_refused=True) == "it ended before offset 57 for a moment"


def test_a_record_with_a_smaller_offset_is_of_another_log():
    """Kafka's client has gone back by itself, as `auto.offset.reset` says."""
    position = LogPosition(57, 0)

    assert position.read(0, 0, 0) == "it continues at offset 0"


def test_a_leader_epoch_that_shrinks_is_of_another_log():
    """The log was created again and has grown beyond the position: its offsets look right."""
    position = LogPosition(57, 0)
    position.read(57, 4, 0)

    assert position.read(58, 0, 0) == "its leader epoch was 4, and is 0 at offset 58"


def test_records_of_brokers_without_leader_epochs_are_no_evidence():
    position = LogPosition(57, 0)

    assert [position.read(57, 4, 0), position.read(58, None, 0), position.read(59, 4, 0)] == ["", "", ""]


def test_a_reader_to_which_nothing_comes_although_there_are_records_is_stuck():
    position = LogPosition(57, 0)
    position.look(0, 60, 1_000)
    position.look(0, 60, 2_000)

    assert not position.is_stuck(1_000 + LONGEST_STILL_MS)
    assert position.is_stuck(1_001 + LONGEST_STILL_MS)


def test_a_reader_at_the_end_is_not_stuck():
    position = LogPosition(57, 0)
    position.look(0, 57, 1_000)

    assert not position.is_stuck(10 * LONGEST_STILL_MS)


def test_a_reader_that_is_behind_and_reads_is_not_stuck():
    position = LogPosition(57, 0)
    position.look(0, 60, 1_000)
    position.read(57, 0, 30_000)
    position.look(0, 60, 31_000)

    assert not position.is_stuck(31_000 + LONGEST_STILL_MS)


def test_a_topic_with_another_id_was_created_again():
    identity = TopicIdentity()

    assert identity.look("one") == ""
    assert identity.look("one") == ""
    assert identity.look("two") == "its topic id was one, and is two now"


@pytest.mark.parametrize("unknown", ["", "AAAAAAAAAAAAAAAAAAAAAA"])
def test_a_topic_whose_id_is_not_known_is_the_same(unknown):
    """Brokers without topic ids, or one that was just started."""
    identity = TopicIdentity("one")

    assert [identity.look(unknown), identity.look("one")] == ["", ""]
