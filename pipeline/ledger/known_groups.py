"""Which groups there are: a question to the decisions alone, for the view `groups` says more and takes seconds."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from wakeroll.errors import InvalidUsage

SHOWN = 20
"""Groups that a refusal names."""


def refuse_unknown_group(spark: SparkSession, group_id: str) -> None:
    """Let nobody ask about a group that never was.

    Raises:
        InvalidUsage: nothing was ever decided about it; the message names the first of those that there are.
    """
    groups = spark.table("decisions").where(f.col("kind").isin("membership", "rebalance")).select("group_id")
    if groups.where(f.col("group_id") == group_id).limit(1).collect():
        return
    known = [row.group_id for row in groups.distinct().orderBy("group_id").limit(SHOWN).collect()]
    raise InvalidUsage(f"no group {group_id!r}; there are: {', '.join(known) or 'none yet'}")
