"""The replay of a whole ledger in Spark: one task per shard, for ledgers that are too large for one machine."""

from collections.abc import Iterator
from functools import partial

import msgspec
import pandas as pd

from wakeroll_model.records import Record
from wakeroll_pipeline.ledger.archived_log import Period, Replayable, records_query
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.questions.replay_check import (
    Checked,
    Recorded,
    check,
    counts_of_unknown,
    in_order,
    is_in,
    plan_replay,
    recorded_in,
)


def replay_in_spark(ledger: SparkLedger, partitions: int, period: Period) -> list[Checked]:
    """Replay all decisions of a period; each shard begins with the nearest earlier snapshot.

    Args:
        ledger: the open ledger.
        partitions: number of partitions of each control topic.
        period: period of log time.

    Returns:
        One result per shard and era, sorted.

    Raises:
        InvalidUsage: as `plan_replay`.
    """
    found = plan_replay(ledger, partitions, period)
    recorded = (
        "select cause.topic as topic, cause.partition as partition, cause.offset as at_offset, shard, seq, json "
        f"from decisions where {recorded_in(ledger, period)}"
    )
    checked = (
        ledger.spark.sql(records_query(found.stretches))
        .groupBy("topic", "partition")
        .cogroup(ledger.spark.sql(recorded).groupBy("topic", "partition"))
        .applyInPandas(partial(check_shard, found, partitions, period), "checked binary")
        .collect()
    )
    return in_order(msgspec.json.decode(row.checked, type=Checked) for row in checked)


def check_shard(
    found: Replayable,
    partitions: int,
    period: Period,
    place: tuple[object, ...],
    records: pd.DataFrame,
    recorded: pd.DataFrame,
) -> pd.DataFrame:
    """Check one shard; Spark calls this function with its topic and partition."""
    records = records.sort_values("offset")
    columns = (recorded[name] for name in ("shard", "seq", "at_offset", "json"))
    rows = [Recorded(shard, int(seq), int(offset), json) for shard, seq, offset, json in zip(*columns, strict=True)]
    checks = []
    for stretch in found.stretches:
        if (stretch.topic, stretch.partition) == place:
            its = sorted((row.seq, row.json) for row in rows if is_in(stretch, row))
            checks.append(check(stretch, partitions, _records(records), its, period))
    checks += counts_of_unknown(found, rows)
    return pd.DataFrame({"checked": [msgspec.json.encode(one) for one in checks]})


def _records(rows: pd.DataFrame) -> Iterator[Record]:
    columns = (rows[name] for name in ("topic", "partition", "offset", "at_ms", "key", "value"))
    for topic, partition, offset, at_ms, key, value in zip(*columns, strict=True):
        yield Record(topic, int(partition), int(offset), int(at_ms), key, value)
