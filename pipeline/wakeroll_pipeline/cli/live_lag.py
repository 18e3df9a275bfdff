"""The lag of groups now: committed offsets from the control topics, ends of the queues from the brokers."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from wakeroll_pipeline.live.live_model import LiveModel
from wakeroll_pipeline.live.view_structs import GroupView, QueueRow


class LagOfQueue(Struct, frozen=True, kw_only=True):
    """The lag of a group in one queue. In a broadcasting group, the lowest committed offset of the members counts."""

    group_id: str
    topic: str
    broker: str
    queue_id: int
    committed_offset: int | None
    """None if no offset was ever committed."""
    end_offset: int | None
    """None if it is not known."""
    lag_messages: int | None
    """None if it is not known: the end is not, or there is no committed offset, and the owner does not begin at the
    first message."""
    lag_ms: int
    """For how long the oldest message has waited (ms); 0 if none waits."""
    lag_is_longer: bool
    """Whether it may have waited for longer: the end of the queue is known from `lag_ms` ago on only."""
    as_of_ms: int
    """Log time (epoch ms)."""


class LagOfGroup(Struct, frozen=True, kw_only=True):
    """The lag of a group in all its queues."""

    group_id: str
    queues: int
    unknown: int
    """Queues whose lag is not known."""
    lag_messages: int | None
    """Sum of the known ones; None if none is known."""
    max_lag_messages: int | None
    """Largest known lag of a queue."""
    max_lag_ms: int
    """For how long the oldest message of all queues has waited (ms); 0 if none waits."""
    lag_is_longer: bool
    as_of_ms: int


def lag_of_queues(view: GroupView) -> list[LagOfQueue]:
    """Return the lag in each queue: first those whose lag is not known, then the largest."""
    rows = [_row(view, queue) for queue in view.queues]
    return sorted(rows, key=lambda row: (row.lag_messages is not None, -(row.lag_messages or 0), *_place(row)))


def _place(row: LagOfQueue) -> tuple[str, str, int]:
    return row.topic, row.broker, row.queue_id


def _row(view: GroupView, queue: QueueRow) -> LagOfQueue:
    since_ms, as_of_ms = queue.behind_since_ms, view.health.as_of_ms
    return LagOfQueue(
        group_id=view.summary.group_id,
        topic=queue.topic,
        broker=queue.broker,
        queue_id=queue.queue_id,
        committed_offset=queue.committed_offset,
        end_offset=queue.end_offset,
        lag_messages=queue.lag_messages,
        lag_ms=0 if since_ms is None else max(as_of_ms - since_ms, 0),
        lag_is_longer=queue.behind_is_longer,
        as_of_ms=as_of_ms,
    )


def lag_of_groups(model: LiveModel, now_s: float) -> list[LagOfGroup]:
    """Return the lag of each group that has queues: first those of which nothing is known, then the largest."""
    return sorted(
        _groups(model, now_s), key=lambda row: (row.lag_messages is not None, -(row.lag_messages or 0), row.group_id)
    )


def _groups(model: LiveModel, now_s: float) -> Iterator[LagOfGroup]:
    for summary in model.groups_view(now_s).groups:
        view = model.group_view(summary.group_id, now_s)
        rows: Sequence[LagOfQueue] = [] if view is None else lag_of_queues(view)
        if rows:
            oldest = max(rows, key=lambda row: row.lag_ms)
            known = [row.lag_messages for row in rows if row.lag_messages is not None]
            yield LagOfGroup(
                group_id=summary.group_id,
                queues=len(rows),
                unknown=len(rows) - len(known),
                lag_messages=sum(known) if known else None,
                max_lag_messages=max(known, default=None),
                max_lag_ms=oldest.lag_ms,
                lag_is_longer=oldest.lag_is_longer,
                as_of_ms=oldest.as_of_ms,
            )
