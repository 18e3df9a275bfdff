"""A check that a group exists.  It reads the decisions only, because the view `groups` takes seconds."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from wakeroll.errors import InvalidUsage

SHOWN = 20
"""Maximum number of group names in the error."""


def refuse_unknown_group(spark: SparkSession, group_id: str) -> None:
    """Reject the name of a group that does not exist.

    Raises:
        InvalidUsage: the tables hold no decision about the group; the message names the first existing groups.
    """
    groups = spark.table("decisions").where(f.col("kind").isin("membership", "rebalance")).select("group_id")
    if groups.where(f.col("group_id") == group_id).limit(1).collect():
        return
    known = [row.group_id for row in groups.distinct().orderBy("group_id").limit(SHOWN).collect()]
    raise InvalidUsage(f"no group {group_id!r}; the groups are: {', '.join(known) or 'none yet'}")
