"""The replay of a whole ledger in Spark: one task per shard, for ledgers that are too large for one machine."""

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pandas as pd
from msgspec import structs

from wakeroll_model.records import Record
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.replay_stretches import Replayable, differs, records_query
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
        f"from decisions where {recorded_in(period, begins=found.begins)}"
    )
    checked = (
        ledger.spark.sql(records_query(found.stretches))
        .groupBy("topic", "partition")
        .cogroup(ledger.spark.sql(recorded).groupBy("topic", "partition"))
        .applyInPandas(partial(check_shard, found, partitions, period), "checked binary, states binary")
        .collect()
    )
    return in_order(_compared(ledger, found, row.checked, row.states) for row in checked)


_States = dict[int, list[bytes]]
"""Offset of a snapshot -> its possible states by the replay, if its bytes differ."""
_MOST_STATES = 50
"""Maximum number of snapshots of a stretch with differing bytes whose values the driver compares; further ones count as
different."""


def _compared(ledger: SparkLedger, found: Replayable, encoded: bytes, states: bytes) -> Checked:
    """Return a result with the snapshots that differ in value, because a task cannot read their bodies."""
    checked = msgspec.json.decode(encoded, type=Checked)
    replayed = msgspec.msgpack.decode(states, type=_States)
    if not replayed:
        return checked
    [stretch] = [one for one in found.stretches if (one.shard_name, one.after) == (checked.shard, checked.after)]
    parts = {offset: differs(ledger, stretch, offset, its) for offset, its in replayed.items()}
    unequal = [
        structs.replace(one, parts=parts.get(one.offset, one.parts))
        for one in checked.unequal
        if parts.get(one.offset, one.parts)
    ]
    return structs.replace(checked, unequal=unequal)


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
    checks: list[Checked] = []
    states: list[_States] = []
    for stretch in found.stretches:
        if (stretch.topic, stretch.partition) == place:
            its = sorted((row.seq, row.json) for row in rows if is_in(stretch, row))
            kept: _States = {}
            checks.append(check(stretch, partitions, _records(records), its, period, compare=partial(_keep, kept)))
            states.append(kept)
    unknown = counts_of_unknown(found, rows)
    return pd.DataFrame(
        {
            "checked": [msgspec.json.encode(one) for one in (*checks, *unknown)],
            "states": [msgspec.msgpack.encode(one) for one in (*states, *({} for _ in unknown))],
        }
    )


def _keep(kept: _States, offset: int, states: Sequence[bytes]) -> list[str]:
    """Keep the states for the driver: see `wakeroll_pipeline.questions.replay_check.Compare`."""
    if len(kept) < _MOST_STATES:
        kept[offset] = list(states)
    return ["bytes of the state"]


def _records(rows: pd.DataFrame) -> Iterator[Record]:
    columns = (rows[name] for name in ("topic", "partition", "offset", "at_ms", "key", "value"))
    for topic, partition, offset, at_ms, key, value in zip(*columns, strict=True):
        yield Record(topic, int(partition), int(offset), int(at_ms), key, value)
