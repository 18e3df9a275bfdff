"""The order of decisions: what Python says, and that the names which shards give their decisions fit it."""

import doctest

from hypothesis import given
from hypothesis import strategies as st

from wakeroll_model import decision_order
from wakeroll_model.decision_order import era_of, order_of
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard

ERAS = st.integers(1, 2_000_000)
SEQS = st.integers(1, 2**53)


def test_the_examples_hold():
    assert doctest.testmod(decision_order).failed == 0


@given(one=st.tuples(ERAS, SEQS), other=st.tuples(ERAS, SEQS), shard=st.sampled_from(["groups-3", "queues-10"]))
def test_decisions_are_ordered_by_era_and_then_by_seq(one, other, shard):
    """As numbers: a log has more than nine eras, when it is lost more than eight times."""
    first, second = (order_of(f"{shard}.{era}", seq) for era, seq in (one, other))

    assert (first < second) == (one < other)


def test_the_name_of_a_shard_says_its_era():
    """The name is made elsewhere, where it must be cheap."""
    for era in (1, 10, 12_345):
        shard = Shard("wakeroll.groups", 3, 4, era=era)
        [refused] = shard.apply(Record("wakeroll.groups", 3, 0, 1_700_000_000_000, None, b"nonsense"))

        assert (refused.shard, era_of(refused.shard)) == (f"groups-3.{era}", era)


def test_a_name_without_an_era_has_none():
    """As that of a decision which no shard has numbered yet."""
    assert [era_of(name) for name in ("", "groups-3", "groups-3.", "groups-3.x", "groups-3.²")] == [0] * 5
