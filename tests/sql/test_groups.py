"""A question about a group that never was is refused by name, however many there are."""

import pytest

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger

pytestmark = pytest.mark.spark


def know(spark, *decided: tuple[str, str]) -> None:
    """Let these decisions, kind and group, be all."""
    spark.createDataFrame(decided, "kind string, group_id string").createOrReplaceTempView("decisions")


def test_of_many_groups_every_one_is_known_and_similar_ones_are_suggested(spark):
    names = [f"g{number:02}" for number in range(30)]
    # One that broadcasts has members, but no rebalances.
    know(spark, *(("membership" if number % 2 else "rebalance", name) for number, name in enumerate(names)))

    for name in (names[0], names[29]):
        refuse_unknown_group(SparkLedger(spark), name)
    with pytest.raises(InvalidUsage) as refused:
        refuse_unknown_group(SparkLedger(spark), "g30")

    assert str(refused.value).startswith("no group 'g30'; did you mean g")


def test_a_record_that_was_refused_makes_no_group(spark):
    know(spark, ("rejected", "typo"))

    with pytest.raises(InvalidUsage, match="no group 'typo'; the groups are: none yet"):
        refuse_unknown_group(SparkLedger(spark), "typo")
