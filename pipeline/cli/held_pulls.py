"""The pulls of a group that the coordinator holds, and the reasons that ended its earlier pulls."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from model.queue import Queue
from model.shard import Shard
from pipeline.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HeldPulls(Struct, frozen=True):
    """The pulls of a group that are held on a queue.  Durations are ms, measured by the shard's clock."""

    queue: Queue
    pulls: int
    oldest_ms: int
    """Duration of the longest wait so far."""
    next_ms: int
    """Duration until the earliest deadline."""
    next_offset: int
    """End offset of the queue, as far as the coordinator knows it."""


def waiting_of(shards: Iterable[Shard], group_id: str) -> list[HeldPulls]:
    """Return the held pulls of a group, one entry per queue, sorted by queue."""
    found = []
    for shard in shards:
        for key in shard.names():
            queue = shard.queue(key)
            holds = [] if queue is None else [hold for hold in queue.holds.values() if hold.group_id == group_id]
            if queue is not None and holds:
                found.append(
                    HeldPulls(
                        queue=Queue.of_key(key),
                        pulls=len(holds),
                        oldest_ms=shard.now_ms - min(hold.since_ms for hold in holds),
                        next_ms=min(hold.until_ms for hold in holds) - shard.now_ms,
                        next_offset=queue.end.believed(shard.now_ms),
                    )
                )
    return sorted(found, key=lambda waiting: waiting.queue)


def holds_tables(spark: "SparkSession", settings: Settings, group_id: str) -> list[Table]:
    """Return a table of the held pulls (from the checkpoint) and one of the recorded ends of pulls (from Delta).

    Raises:
        InvalidUsage: there is no checkpoint with a committed batch.
    """
    from pipeline.recovery.checkpoint_state import read_shards

    held = Table(title="pulls that are held")
    held.add_column("queue")
    for name in ("pulls", "oldest", "next deadline", "queue ends at"):
        held.add_column(name, justify="right")
    for waiting in waiting_of(read_shards(spark, settings), group_id):
        held.add_row(
            str(waiting.queue),
            str(waiting.pulls),
            _seconds(waiting.oldest_ms),
            _seconds(waiting.next_ms),
            str(waiting.next_offset),
        )
    return [held, _wakes_table(spark, group_id)]


def _wakes_table(spark: "SparkSession", group_id: str) -> Table:
    from pyspark.sql import functions as f

    rows = spark.table("wakes")
    counted = (
        rows.where(rows.group_id == group_id)
        .groupBy("reason")
        .agg(
            f.count("*").alias("pulls"),
            f.percentile("held_ms", 0.5).alias("held_ms"),
            f.percentile("arrival_to_wake_ms", 0.5).alias("delay_ms"),
        )
        .orderBy("reason")
        .collect()
    )
    table = Table(title="what ended a wait")
    table.add_column("reason")
    for name in ("pulls", "held, p50", "from arrival to wake, p50"):
        table.add_column(name, justify="right")
    for row in counted:
        delay = "-" if row.delay_ms is None else f"{row.delay_ms:.0f} ms"
        table.add_row(row.reason, str(row.pulls), _seconds(row.held_ms), delay)
    return table


def _seconds(duration_ms: float) -> str:
    return f"{duration_ms / 1_000:.1f} s"
