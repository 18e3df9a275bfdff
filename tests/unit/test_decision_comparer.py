"""Repeated decisions are compared, and cost nothing while one coordinator publishes."""

from wakeroll_pipeline.operators import decision_comparer
from wakeroll_pipeline.operators.decision_comparer import MOST_STORED, WORKS_FOR_S, DecisionComparer, Difference, Seen


def seen(seq: int, writer: str, digest: int, offset: int = 0) -> Seen:
    return Seen(0, offset, "groups-0.1", seq, writer, digest)


def test_one_coordinator_is_not_compared_and_two_are_for_a_while():
    comparer = DecisionComparer()

    assert not comparer.must_compare(["a"], 0)
    assert comparer.must_compare(["b"], 1)
    assert comparer.must_compare(["b"], WORKS_FOR_S)
    assert not comparer.must_compare(["b"], WORKS_FOR_S + 1)
    assert comparer.must_compare(["a", "b"], WORKS_FOR_S + 2)


def test_a_repetition_with_other_bytes_names_both_writers_in_the_order_of_kafka():
    comparer = DecisionComparer()
    other = seen(1, "b", 8, offset=2)

    assert comparer.compare([other, seen(1, "a", 7, offset=1)]) == [Difference(other, "a")]
    assert comparer.differences == 1


def test_a_repetition_in_a_later_batch_is_compared_too():
    comparer = DecisionComparer()
    comparer.compare([seen(1, "a", 7), seen(2, "a", 7, offset=1)])

    assert comparer.compare([seen(1, "b", 7, offset=2)]) == []
    assert [one.seen.seq for one in comparer.compare([seen(2, "b", 9, offset=3)])] == [2]


def test_all_differences_are_counted_and_the_first_ones_of_two_writers_are_stored():
    """After the first difference, all further decisions differ."""
    comparer = DecisionComparer()
    count = MOST_STORED + 10
    comparer.compare([seen(seq, "a", 7, offset=seq) for seq in range(count)])

    found = comparer.compare([seen(seq, "b", 8, offset=count + seq) for seq in range(count)])

    assert [one.seen.seq for one in found] == list(range(MOST_STORED))
    assert comparer.differences == count


def test_the_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(decision_comparer, "MOST_REMEMBERED", 3)
    comparer = DecisionComparer()
    comparer.compare([seen(seq, "a", 7, offset=seq) for seq in range(5)])

    assert comparer.compare([seen(1, "b", 8, offset=5)]) == [], "it was forgotten"
    assert len(comparer.compare([seen(4, "b", 8, offset=6)])) == 1
