"""The ledger of a story: what `record` makes of its records."""

import pytest
from pyspark.sql import functions as f

from ledgers import a_day
from pipeline.tables import open_views

pytestmark = pytest.mark.spark


def test_every_record_and_every_decision_is_a_row(spark, day):
    """Whatever else the tables say, nothing may be missing."""
    story = a_day()
    open_views(spark, day)

    assert spark.table("events").count() + spark.table("decisions").count() == len(story.rows)
    assert spark.table("decisions").count() == len(story.decisions)
    kinds = {row.kind for row in spark.table("decisions").select("kind").distinct().collect()}
    assert kinds >= {"assignment", "membership", "rebalance", "handover", "offset", "wake", "rejected"}
    assert spark.table("snapshots").select(f.countDistinct("topic", "partition")).collect()[0][0] == 8
