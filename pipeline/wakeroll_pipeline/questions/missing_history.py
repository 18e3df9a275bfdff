"""The gaps in a history: decisions or records that are recorded as lost."""

from collections.abc import Iterator

from wakeroll_model.rows import DECISIONS
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.losses import Loss, losses_of, losses_of_group


def missing_history(
    ledger: Ledger, group_id: str = "", from_ms: int | None = None, to_ms: int | None = None
) -> list[str]:
    """Return phrases about the gaps in the history of a group.

    Lost rows have no time; they lie between the times of the rows beside them, so some of them may be of another period
    or about another group of the same shard.

    Args:
        ledger: the open ledger.
        group_id: the group; empty for all groups.
        from_ms: begin of the period in log time (epoch ms), inclusive; None: the start of the log.
        to_ms: its end, inclusive; None: the end of the log.
    """
    losses = [one for one in losses_of(ledger) if one.stream]
    if group_id:
        losses = losses_of_group(ledger, group_id, losses)
    return [loss.text for loss in losses if _overlaps(ledger, loss, from_ms, to_ms)]


def _overlaps(ledger: Ledger, loss: Loss, from_ms: int | None, to_ms: int | None) -> bool:
    before, after = _beside(ledger, loss)
    return (to_ms is None or before is None or before <= to_ms) and (
        from_ms is None or after is None or after >= from_ms
    )


def _beside(ledger: Ledger, loss: Loss) -> Iterator[int | None]:
    """Yield the time of the row before lost ones, and of the row after them; None if there is none."""
    values = {"first": loss.first, "last": loss.last}
    if loss.table == DECISIONS.name:
        table, position, condition = "decisions", "seq", "shard = $shard"
        its: dict[str, str | int] = {"shard": loss.shard}
    else:
        topic, _, partition = loss.stream.rpartition("-")
        table, position, condition = "events", "events.offset", "topic = $topic and partition = $partition"
        its = {"topic": topic, "partition": int(partition.partition(".")[0])}
    for function, side in (("max", f"{position} < $first"), ("min", f"{position} > $last")):
        [row] = ledger.rows(
            f"select {function}(at_ms) as at_ms from {table} where {condition} and {side}",
            **its,
            **{name: value for name, value in values.items() if f"${name}" in side},
        )
        yield row.at_ms
