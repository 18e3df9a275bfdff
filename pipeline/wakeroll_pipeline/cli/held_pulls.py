"""The pulls of a group that the coordinator holds, and the reasons that ended its earlier pulls."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from rich.table import Table

from wakeroll_model.queue import Queue
from wakeroll_model.shard import Shard
from wakeroll_pipeline.cli.output import clock_text, seconds_text
from wakeroll_pipeline.ledger.ledger import Ledger, Row

if TYPE_CHECKING:
    from wakeroll_pipeline.live.live_model import LiveModel


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


class Held(Struct, frozen=True):
    """The held pulls of a group at a moment."""

    pulls: list[HeldPulls]
    at_ms: int
    """Log time (epoch ms) of the last tick that the answer includes."""


def held_of(model: "LiveModel", group_id: str) -> Held:
    """Return the held pulls of a group, as a model has them."""
    with model.lock:
        shards = [one.shard for one in model.shards.values() if one.kind == "queues"]
        return Held(_waiting_of(shards, group_id), max((shard.tick_ms for shard in shards), default=0))


def _waiting_of(shards: Iterable[Shard], group_id: str) -> list[HeldPulls]:
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


def held_table(held: Held) -> Table:
    """Return a table with one row per queue."""
    table = Table(title=f"pulls that were held at {clock_text(held.at_ms or None)}")
    table.add_column("queue")
    for name in ("pulls", "oldest", "next deadline", "queue ends at"):
        table.add_column(name, justify="right")
    for waiting in held.pulls:
        table.add_row(
            str(waiting.queue),
            str(waiting.pulls),
            seconds_text(waiting.oldest_ms),
            seconds_text(waiting.next_ms),
            str(waiting.next_offset),
        )
    return table


WAITS_MS = 3_600_000
"""Log time of the ended pulls that are counted (ms)."""


def waits_of(ledger: Ledger, group_id: str, from_ms: int, to_ms: int) -> list[Row]:
    """Return the number and the median durations (ms) of the ended pulls of a group, one row per reason.

    Args:
        ledger: the ledger; its rows before `from_ms` are not needed.
        group_id: the group.
        from_ms: log time of the first ended pull (epoch ms).
        to_ms: log time of the last one.
    """
    return ledger.rows(
        "select reason, count(*) as pulls, median(held_ms) as held_ms, median(arrival_to_wake_ms) as delay_ms "
        "from wakes where group_id = $group_id and at_ms >= $from_ms and at_ms <= $to_ms "
        "group by reason order by reason",
        group_id=group_id,
        from_ms=from_ms,
        to_ms=to_ms,
    )


def waits_table(waits: Sequence[Row]) -> Table:
    """Return a table with one row per reason."""
    table = Table(title="what ended a wait, in the last hour")
    table.add_column("reason")
    for name in ("pulls", "held, p50", "from arrival to wake, p50"):
        table.add_column(name, justify="right")
    for row in waits:
        delay = "-" if row.delay_ms is None else f"{row.delay_ms:.0f} ms"
        table.add_row(row.reason, str(row.pulls), seconds_text(row.held_ms), delay)
    return table
