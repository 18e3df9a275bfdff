"""Events between two moments: changes of members, rebalances, hand-overs, resets and rejections, in order."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.decision_order import SHARD_SQL
from wakeroll_model.queue import slice_sql
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll_pipeline.ledger.ledger import Row, Value
from wakeroll_pipeline.questions.missing_history import missing_history

DEFAULT_MS = 3_600_000
"""Length of a period without a given begin (ms)."""
BEFORE_MS = 3_600_000
"""Time before a period whose rows may be needed (ms): a member may expire before its queues get other owners."""

HappeningKind = Literal["member", "rebalance", "hand-over", "reset", "rejection"]


class Happening(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One decision that changed something, or rejected a record."""

    at_ms: int
    """Log time of the cause (epoch ms)."""
    kind: HappeningKind
    what: str
    """Change of the member, trigger, how the queue became free, or broken rule; empty for a reset."""
    group_id: str = ""
    """Name of the group; empty if a rejected record names none."""
    client_id: str = ""
    epoch: int | None = None
    text: str
    """The event in words."""
    queue: str = ""
    before: str = ""
    """Owner before a hand-over; empty if there was none."""
    after: str = ""
    """Owner after a hand-over; empty if there is none."""
    took_ms: int | None = None
    """Time from the revocation, or else from the release, to the assignment (ms)."""
    silent_ms: int | None = None
    """Time from the last heartbeat of an owner that expired to its expiration (ms); None for other hand-overs."""
    record: str = ""
    """The record that caused it, as ``topic-partition@offset``; empty for a reset."""
    shard: str
    """Shard with its era, like ``groups-3.1``."""
    seq: int


class Count(Struct, frozen=True, kw_only=True):
    """The number of events of one kind."""

    kind: HappeningKind
    what: str
    number: int
    moved: int
    """For rebalances: number of queues with an owner that had to move."""


class Happenings(Struct, frozen=True, kw_only=True):
    """A part of the events of a period."""

    total: int
    counts: Sequence[Count]
    """Counts of the whole period, the most frequent first within a kind."""
    events: Sequence[Happening]


class Happened(Struct, frozen=True, kw_only=True):
    """The answer of `wakeroll happened`: the events of a period."""

    from_ms: int
    """Begin of the period in log time (epoch ms), inclusive."""
    to_ms: int
    """End of the period in log time (epoch ms), inclusive."""
    group_id: str
    """Name of the group; empty for all groups."""
    happened: Happenings
    missing: Sequence[str] = ()
    """Phrases about missing decisions and records that may be of this period."""


def period_of(first_ms: int, last_ms: int, from_ms: int | None, to_ms: int | None) -> tuple[int, int]:
    """Return begin and end of a period (epoch ms); the defaults are an hour before the end, and the end of the log.

    Args:
        first_ms: log time of the first record (epoch ms).
        last_ms: log time of the last record (epoch ms).
        from_ms: begin of the period; None: not given.
        to_ms: end of the period, inclusive; None: not given.

    Raises:
        InvalidUsage: the begin is after the end, or the log has no record of the period.
    """
    end_ms = last_ms if to_ms is None else to_ms
    begin_ms = end_ms - min(DEFAULT_MS, max(end_ms - first_ms, 0)) if from_ms is None else from_ms
    nothing = f"the archived log has records from {EpochMs(first_ms)} to {EpochMs(last_ms)}, none in this period"
    if end_ms < first_ms or begin_ms > last_ms:
        raise InvalidUsage(nothing)
    if begin_ms > end_ms:
        raise InvalidUsage(f"from is {EpochMs(begin_ms)}; it must not be after to, which is {EpochMs(end_ms)}")
    return begin_ms, end_ms


def happened(
    ledger: DuckLedger, from_ms: int, to_ms: int, group_id: str = "", *, limit: int | None = None, skip: int = 0
) -> Happened:
    """Return the events of a period, and the gaps in its history.

    Args:
        ledger: the open ledger. Of its tables, only those that it opens itself are queried, so that the time does not
            grow with the age of the ledger.
        from_ms: as for `happenings`.
        to_ms: as for `happenings`.
        group_id: as for `happenings`.
        limit: as for `happenings`.
        skip: as for `happenings`.
    """
    found = happenings_nearby(ledger, from_ms, to_ms, group_id, limit=limit, skip=skip)
    with ledger.within() as whole:
        missing = missing_history(whole, group_id, from_ms, to_ms)
    return Happened(from_ms=from_ms, to_ms=to_ms, group_id=group_id, happened=found, missing=missing)


def happenings_nearby(
    ledger: DuckLedger, from_ms: int, to_ms: int, group_id: str = "", *, limit: int | None = None, skip: int = 0
) -> Happenings:
    """Return `happenings` from the files of the period only, of the tables that `ledger` opens itself."""
    with ledger.within(from_ms - BEFORE_MS, to_ms) as near:
        return happenings(near, from_ms, to_ms, group_id, limit=limit, skip=skip)


def refuse_if_unknown(ledger: DuckLedger, found: Happened) -> None:
    """Reject an answer without events about a group that does not exist.

    Raises:
        InvalidUsage: the tables hold no decision about the group.
    """
    if found.group_id and not found.happened.total:
        with ledger.within() as whole:
            refuse_unknown_group(whole, found.group_id)


def happenings(
    ledger: DuckLedger, from_ms: int, to_ms: int, group_id: str = "", *, limit: int | None = None, skip: int = 0
) -> Happenings:
    """Return the events of a period, oldest first.

    Events of one shard are in the order in which they were decided (era, seq); those of different shards are merged by
    log time.

    Args:
        ledger: the open ledger.
        from_ms: begin of the period in log time (epoch ms), inclusive.
        to_ms: end of the period, inclusive.
        group_id: a group; empty for all groups.
        limit: maximum number of events to return; None: all.
        skip: number of events to leave out before the first one.
    """
    values: dict[str, Value] = {"from_ms": from_ms, "to_ms": to_ms}
    where = "at_ms >= $from_ms and at_ms <= $to_ms"
    if group_id:
        where += " and group_id = $group_id"
        values["group_id"] = group_id
    happened = " union all by name ".join(f"select {columns} from {source} where {where}" for columns, source in _PARTS)
    counted = ledger.rows(
        f"select kind, what, count(*) as number, coalesce(sum(moved), 0)::bigint as moved from ({happened}) "
        "group by kind, what order by kind, number desc, what",
        **values,
    )
    rows = ledger.rows(
        f"select *, max(at_ms) over (partition by {SHARD_SQL} order by era, seq) as placed_ms from ({happened}) "
        f"order by placed_ms, {SHARD_SQL}, era, seq limit {'all' if limit is None else limit} offset {skip}",
        **values,
    )
    counts = [Count(kind=row.kind, what=row.what, number=row.number, moved=row.moved) for row in counted]
    return Happenings(total=sum(one.number for one in counts), counts=counts, events=[_happening(row) for row in rows])


_DECIDED = "at_ms, shard, era, seq, group_id"
_QUEUE = (
    "topic || case when broker = '' then '' else '@' || broker end || '-' || queue_id "
    "|| coalesce('/' || replace(slice, '/', 'of'), '') as queue"
)
_PARTS = (
    (
        f"{_DECIDED}, 'member' as kind, change as what, client_id, epoch, detail, cause, 0 as moved",
        "memberships",
    ),
    (
        f"{_DECIDED}, 'rebalance' as kind, \"trigger\" as what, epoch, cause, strategy as detail, clients, queues, "
        "moved, coalesce(unassigned_count, 0) as unassigned",
        "rebalances",
    ),
    (
        f'{_DECIDED}, \'hand-over\' as kind, how as what, epoch, cause, "from" as owner_before, "to" as owner_after, '
        f"assigned_ms - coalesce(revoked_ms, released_ms) as took_ms, silent_ms, {_QUEUE}, "
        "0 as moved",
        "(select *, queue.topic as topic, queue.broker as broker, queue.queue_id as queue_id, "
        f"{slice_sql('queue')} as slice from handovers "
        "left join (select shard, seq, silent_ms from silences) as silences using (shard, seq))",
    ),
    (
        f"{_DECIDED}, 'reset' as kind, '' as what, client_id, epoch, reset_by as detail, {_QUEUE}, "
        "case when deleted is null then committed_offset end as moved_to, 0 as moved",
        "(select * from offsets where reset_by is not null)",
    ),
    (
        f"{_DECIDED}, 'rejection' as kind, rule as what, client_id, detail, cause, 0 as moved",
        "rejections",
    ),
)
"""Columns and source of each kind; a column that a kind lacks is null."""


def _happening(row: Row) -> Happening:
    return Happening(
        at_ms=row.at_ms,
        kind=row.kind,
        what=row.what or "",
        group_id=row.group_id or "",
        client_id=row.client_id or "",
        epoch=row.epoch,
        text=_text(row),
        queue=row.queue or "",
        before=row.owner_before or "",
        after=row.owner_after or "",
        took_ms=None if row.took_ms is None else max(row.took_ms, 0),
        silent_ms=row.silent_ms,
        record="" if row.cause is None else f"{row.cause.topic}-{row.cause.partition}@{row.cause.offset}",
        shard=row.shard,
        seq=row.seq,
    )


def _text(row: Row) -> str:
    match row.kind:
        case "member":
            detail = (row.detail or "").partition("\n")[0]  # a report has the stacks below its first line
            return f"{row.client_id or 'the group'}: {row.what}" + (f" ({detail})" if detail else "")
        case "rebalance":
            shares = f"{row.detail or 'no strategy'}, {_many(row.queues, 'queue')}, {_many(row.clients, 'client')}"
            left = f", {row.unassigned} unassigned" if row.unassigned else ""
            return f"rebalance to epoch {row.epoch} by {row.what}: {shares}, {row.moved} must move{left}"
        case "hand-over":
            return f"{row.queue}: {row.owner_before or 'nobody'} → {row.owner_after or 'nobody'} ({row.what})"
        case "reset":
            how = "deleted" if row.moved_to is None else f"reset to {row.moved_to}"
            return f"offset of {row.queue} {how} by {row.detail}"
        case _:
            return f"rejected by rule {row.what}: {row.detail}"


def _many(count: int | None, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
