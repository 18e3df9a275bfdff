"""The owner of a queue, and the chain of records that led to it: event → rebalance → hand-over → assignment.

Each decision names its cause, so the chain is read from the tables and not guessed.
"""

import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from wakeroll.epoch_ms import EpochMs
from wakeroll.errors import InvalidUsage
from wakeroll_model.coordinator_log.kafka_events import KIND
from wakeroll_model.decision_order import SHARD_SQL, without_era
from wakeroll_model.queue import Queue, slice_sql
from wakeroll_model.strategies import pinned
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.known_groups import refuse_unknown_group
from wakeroll_pipeline.ledger.ledger import Ledger, Row, Value, any_of, one_row
from wakeroll_pipeline.ledger.losses import losses_of
from wakeroll_pipeline.questions.missing_history import missing_history


class Step(NamedTuple):
    """One step of the chain."""

    at_ms: int
    """Log time (epoch ms)."""
    what: str
    """The step in words."""
    where: str = ""
    """The record of the step, or the record that caused it: ``topic-partition@offset``; empty if none."""


Placed = tuple[int, Step]
"""Offset of the record of a step, and the step.  A group's records are in one partition, so offsets order the steps."""


class Explanation(NamedTuple):
    """The answer as a sentence, and the steps that led to it, oldest first by offset (not by time)."""

    answer: str
    steps: list[Step]
    missing: Sequence[str] = ()
    """Phrases about decisions and records of the group's shard that are recorded as lost, and may have been about the
    queue."""


_NEWEST = "order by era desc, seq desc"
_RECENT_MS = 60_000
_BEFORE = "(era < $era or (era = $era and seq < $seq))"
_REBALANCE = f"select * from rebalances where group_id = $group_id and epoch <= $epoch and {_BEFORE} {_NEWEST}"
_OFFSETS_OF_QUEUE = (
    "group_id = $group_id and topic = $topic and broker = $broker and queue_id = $queue_id "
    "and slice is not distinct from $slice"
)


def explain_nearby(ledger: DuckLedger, group_id: str, queue: Queue, at_ms: int | None = None) -> Explanation:
    """Explain like `explain`, but open only files of the time before the moment, if they have the whole answer.

    Of the tables in `ledger`, only those that it opens itself are queried.
    """
    for from_ms in ledger.periods(at_ms):
        with ledger.within(from_ms, at_ms) as near:
            if _has_answer(near, group_id, queue, from_ms, at_ms):
                return explain(near, group_id, queue, at_ms)
    with ledger.within() as whole:
        return explain(whole, group_id, queue, at_ms)


def _has_answer(ledger: Ledger, group_id: str, queue: Queue, from_ms: int, at_ms: int | None) -> bool:
    """Return whether the tables of a period have the last hand-over of a queue, and the other rows for `explain`."""
    until, values = _until(at_ms), _queue_values(group_id, queue)
    last = one_row(ledger, f"select * from handovers where {_OF_QUEUE}{until} {_NEWEST}", **values)
    if last is None or losses_of(ledger):
        return False
    times = [one for one in (last.at_ms, last.revoked_ms, last.released_ms, last.assigned_ms) if one is not None]
    counted = one_row(
        ledger,
        "select count(*) as rows, max(seq) as last_seq from decisions where shard = $shard and seq >= $seq",
        shard=last.shard,
        seq=last.seq,
    )
    return (
        min(times) - _EARLIER_MS >= from_ms
        # No decision is missing in between: a newer one may have an older time, if a clock was put back.
        and counted is not None
        and counted.rows == counted.last_seq - last.seq + 1
        and one_row(ledger, _REBALANCE, epoch=last.epoch, **_before(last)) is not None
        and one_row(ledger, f"select * from offsets where {_OFFSETS_OF_QUEUE}{until}", **values) is not None
    )


_EARLIER_MS = 3_600_000
"""The log time of a record that led to a hand-over is at most this much (ms) before the times of the hand-over."""


def _until(at_ms: int | None) -> str:
    return "" if at_ms is None else f" and at_ms <= {at_ms}"


def explain(ledger: Ledger, group_id: str, queue: Queue, at_ms: int | None = None) -> Explanation:
    """Explain who owned a queue at a moment, and why.

    Args:
        ledger: the open ledger.
        group_id: a group in clustering mode.
        queue: a queue of one of its topics.
        at_ms: the moment in log time (epoch ms), inclusive; None: the end of the recorded log.

    Raises:
        InvalidUsage: the group does not exist, or the queue never had an owner in it; the message names the groups or
            the topics that exist.
    """
    until = _until(at_ms)
    last = one_row(
        ledger, f"select * from handovers where {_OF_QUEUE}{until} {_NEWEST}", **_queue_values(group_id, queue)
    )
    if last is None:
        refuse_unknown_group(ledger, group_id)
        raise InvalidUsage(_why_not(ledger, group_id, queue, at_ms))
    asked = f"{queue} of {group_id}"
    when = "" if at_ms is None else f", as of {EpochMs(at_ms)}"
    later = one_row(
        ledger,
        f"select era from decisions where {SHARD_SQL} = $shard and era > $era{until} {_NEWEST}",
        shard=without_era(last.shard),
        era=last.era,
    )
    if later is not None:
        answer = (
            f"{asked} has no owner since era {later.era} began: the coordinator lost its state, and no member has "
            f"claimed the queue; the owner after the last recorded hand-over, at {EpochMs(last.at_ms)} (epoch "
            f"{last.epoch}), was {last.to or 'none'}{when}"
        )
    elif last.how == "cut":
        others = ", ".join(_queues_of_partition(ledger, group_id, queue, until))
        answer = (
            f"{asked} is no queue any more since {EpochMs(last.at_ms)} (epoch {last.epoch}), because the number of "
            f"slices changed; its partition now has {others}{when}"
        )
    elif last.to is None:
        answer = f"{asked} has no owner since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    else:
        answer = f"{asked} is owned by {last.to} since {EpochMs(last.at_ms)} (epoch {last.epoch}){when}"
    steps = [*_rebalance_steps(ledger, last), *_handover_steps(ledger, last, queue)]
    if last.to is None and last.how != "cut":
        steps += _unassigned_steps(ledger, group_id, queue, until)
    steps += _kept_steps(ledger, group_id, queue, until)
    missing = missing_history(ledger, group_id, to_ms=at_ms)
    return Explanation(answer, [step for _, step in sorted(steps, key=itemgetter(0))], missing)


def _queues_of_partition(ledger: Ledger, group_id: str, queue: Queue, until: str) -> list[str]:
    """Return the queues with present or former owners in the partition of a queue, as text with these owners."""
    newest = (
        f"select *, row_number() over (partition by {slice_sql('queue')} {_NEWEST}) as nth_newest "
        f"from handovers where {_OF_PARTITION}{until}"
    )
    rows = ledger.rows(
        f"select * from ({newest}) as ranked where nth_newest = 1 and how <> 'cut'",
        **_partition_values(group_id, queue),
    )
    found = sorted((_queue(row.queue), row.to or "nobody") for row in rows)
    more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return [*(f"{one} of {owner}" for one, owner in found[:_NAMED]), *more]


_NAMED = 16
"""Maximum number of queues of a partition that an answer names."""


def _rebalance_steps(ledger: Ledger, last: Row) -> Iterator[Placed]:
    """Yield the rebalance whose target includes this hand-over, and the events that caused it."""
    rebalance = one_row(ledger, _REBALANCE, epoch=last.epoch, **_before(last))
    if rebalance is None:
        return
    asked = [_place(cause) for cause in rebalance.causes or [rebalance.cause]]
    yield from _events(ledger, last.group_id, asked)
    if rebalance.strategy == pinned.NAME and rebalance.trigger == "timer":
        yield from _changes_before(ledger, last)
    does = "follows the assignment that was observed:" if rebalance.strategy == pinned.NAME else "shares"
    if rebalance.shard.startswith(f"{KIND}-"):
        does = "of Kafka shares"
    strategy = rebalance.strategy or "an assignor that is not recorded"
    what = (
        f"rebalance to epoch {rebalance.epoch} by {rebalance.trigger}: {strategy} {does} "
        f"{_many(rebalance.queues, 'queue')} among {_many(rebalance.clients, 'client')}, {rebalance.moved} must move"
        + "".join(f"; {note}" for note in rebalance.notes)
    )
    yield rebalance.cause.offset, Step(rebalance.at_ms, what, _record(rebalance.cause))


def _changes_before(ledger: Ledger, last: Row) -> Iterator[Placed]:
    """Yield the changes of members in the minute before a hand-over that another coordinator made.

    The other coordinator moves queues some seconds after a member joined or left, because other members release them
    first.
    """
    changes = (
        "select * from memberships where group_id = $group_id and change in ('joined', 'left', 'died', 'expired', "
        "'gone', 'kicked', 'leaving') and "
        f"at_ms > $since_ms and {_BEFORE} order by era, seq"
    )
    for row in ledger.rows(changes, since_ms=last.at_ms - _RECENT_MS, **_before(last)):
        yield row.cause.offset, Step(row.at_ms, f"{row.client_id} {row.change}", _record(row.cause))


def _handover_steps(ledger: Ledger, last: Row, queue: Queue) -> Iterator[Placed]:
    """Yield revocation, release and assignment of the queue."""
    if last.how == "cut":
        yield last.cause.offset, Step(last.at_ms, "other slices with its messages were assigned", _record(last.cause))
        return
    owner, freed = last["from"], last
    if last.released_ms not in (None, last.at_ms):
        # The queue was not assigned when it was released: the hand-over before this one released it.
        before = f"select * from handovers where {_OF_QUEUE} and {_BEFORE} {_NEWEST}"
        freed = one_row(ledger, before, **{**_queue_values(last.group_id, queue), **_before(last)}) or last
    if last.revoked_ms is not None and owner is not None:
        sent_then = f"{_SENT} and at_ms = $revoked_ms and {_BEFORE} {_NEWEST}"
        asked = one_row(ledger, sent_then, client_id=owner, revoked_ms=last.revoked_ms, **_before(last)) or freed
        yield asked.cause.offset, Step(last.revoked_ms, f"a revocation was sent to {owner}")
    if last.released_ms is not None and owner is not None:
        how = _HOW.get(last.how, f"{{}} lost the queue ({last.how})").format(owner)
        yield freed.cause.offset, Step(last.released_ms, how, _record(freed.cause))
    if last.to is None:
        return
    assigned_ms = last.at_ms if last.assigned_ms is None else last.assigned_ms
    is_caused, values = any_of(_CAUSE, [_place(last.cause)])
    sent = one_row(ledger, f"{_SENT} and {is_caused} {_NEWEST}", group_id=last.group_id, client_id=last.to, **values)
    start = "" if sent is None else _start(json.loads(sent.json), queue)
    first = " as its first owner" if last.how == "first" else ""
    yield (
        last.cause.offset,
        Step(assigned_ms, f"the queue was assigned to {last.to}{first}{start}", _record(last.cause)),
    )


_HOW = {
    "released": "{} released the queue",
    "unregistered": "{} left the group",
    "died": "the process of {} ended",
    "expired": "{} expired: its session timed out without a heartbeat",
    "replaced": "a new instance replaced {}",
    "timeout": "{} lost the queue: it did not release it within the revoke timeout, so messages may repeat",
    "gone": "{} left the group or was lost: Kafka does not record which",
    "eager": "{} lost the queue at once: the hand-over of the group is eager",
    "removed": "{} lost the queue: it is no longer routed or subscribed",
}


_FROM = {
    "first": "from its first message",
    "last": "from its end offset",
    "timestamp": "from the timestamp in its preferences",
}


def _unassigned_steps(ledger: Ledger, group_id: str, queue: Queue, until: str) -> Iterator[Placed]:
    """Yield the reason why the newest rebalance leaves the queue without an owner."""
    newest = one_row(ledger, f"select * from rebalances where group_id = $group_id{until} {_NEWEST}", group_id=group_id)
    if newest is None:
        return
    reasons = {_queue(one.queue): one.reason for one in newest.unassigned}
    if queue in reasons:
        says = f"leaves the queue unassigned: {reasons[queue]}"
    elif (newest.unassigned_count or 0) > len(reasons):
        says = f"leaves {newest.unassigned_count} queues unassigned; the reason of one: {newest.unassigned[0].reason}"
    else:
        return
    yield newest.cause.offset, Step(newest.at_ms, f"epoch {newest.epoch} {says}", _record(newest.cause))


def _kept_steps(ledger: Ledger, group_id: str, queue: Queue, until: str) -> Iterator[Placed]:
    """Yield the last commit, if it stays before messages that match only other members' filters."""
    newest = one_row(
        ledger, f"select * from offsets where {_OFFSETS_OF_QUEUE}{until} {_NEWEST}", **_queue_values(group_id, queue)
    )
    if newest is None:
        return
    decided = one_row(
        ledger,
        f"select * from decisions where {SHARD_SQL} = $shard and era = $era and seq = $seq",
        shard=without_era(newest.shard),
        era=newest.era,
        seq=newest.seq,
    )
    ahead = [] if decided is None else json.loads(decided.json).get("ahead", [])
    if decided is None or not ahead:
        return
    done = ", ".join(f"{_filter(one)} to {one['offset']}" for one in ahead)
    what = (
        f"{newest.client_id} committed offset {newest.committed_offset} and processed the messages for {done}; those "
        "between that only other members' filters want are kept for them"
    )
    yield decided.cause.offset, Step(newest.at_ms, what, _record(decided.cause))


def _filter(one: dict[str, Any]) -> str:
    return f"{one.get('expression_type', 'TAG')} {one.get('expression', '*')!r:.100}"


def _events(ledger: Ledger, group_id: str, asked: list[tuple[str, int, int]]) -> Iterator[Placed]:
    """Yield the events that caused a rebalance, with the changes of members that followed."""
    is_caused, values = any_of(_CAUSE, asked)
    changes: dict[str, list[str]] = {}
    memberships = f"select * from memberships where group_id = $group_id and {is_caused} order by era, seq"
    for row in ledger.rows(memberships, group_id=group_id, **values):
        change = f"{row.client_id or 'the group'} {row.change}" + (f" ({row.detail})" if row.detail else "")
        changes.setdefault(_record(row.cause), []).append(change)
    is_event, values = any_of(("topic", "partition", "events.offset"), asked)
    events = f"select *, events.offset as at_offset from events where {is_event} order by at_offset"
    for row in ledger.rows(events, **values):
        where = f"{row.topic}-{row.partition}@{row.at_offset}"
        client = _client(row.value)
        what = f"{row.type or 'a record'}{client}"
        yield row.at_offset, Step(row.at_ms, what + "".join(f", {change}" for change in changes.get(where, ())), where)


def _client(value: bytes | None) -> str:
    """Return the client or the topic of an event as text, such as `" of c1"`; empty if it has none."""
    try:
        event: Any = json.loads(value or b"")
    except ValueError:
        return ""
    who = event.get("client_id") or event.get("topic") if isinstance(event, dict) else None
    return f" of {who}" if isinstance(who, str) else ""


def _start(assignment: dict[str, Any], queue: Queue) -> str:
    for one in assignment["queues"]:
        if one["queue"] == msgspec.to_builtins(queue):
            offset, policy = one["start"].get("offset"), one["start"].get("policy")
            begins = [f"from offset {offset}"] if offset is not None else []
            begins += [_FROM[policy]] if policy is not None else []
            done = ", ".join(
                f"slice {former.get('slice', 0)}/{former['slices']} to {former['offset']}"
                if former.get("slices", 1) > 1
                else f"the partition to {former['offset']}"
                for former in one["start"].get("done", ())
            )
            return f", {' or '.join(begins)}" + (f"; processed before: {done}" if done else "")
    return ""


_CAUSE = ("cause.topic", "cause.partition", "cause.offset")
_OF_PARTITION = (
    "group_id = $group_id and queue.topic = $topic and queue.broker = $broker and queue.queue_id = $queue_id"
)
_OF_QUEUE = f"{_OF_PARTITION} and {slice_sql('queue')} is not distinct from $slice"
_SENT = "select * from decisions where kind = 'assignment' and group_id = $group_id and client_id = $client_id"
"""The assignments that a client received."""


def _queue_values(group_id: str, queue: Queue) -> dict[str, Value]:
    """Return the values of `_OF_QUEUE` and of `_OFFSETS_OF_QUEUE`."""
    return _partition_values(group_id, queue) | {"slice": queue.slice_text}


def _partition_values(group_id: str, queue: Queue) -> dict[str, Value]:
    """Return the values of `_OF_PARTITION`."""
    return {"group_id": group_id, "topic": queue.topic, "broker": queue.broker, "queue_id": queue.queue_id}


def _queue(row: Row) -> Queue:
    """Return the queue of a structure in a decision, whose JSON omits the slice of a queue that is not cut."""
    return Queue(row.topic, row.broker, row.queue_id, row.slices or 1, row.slice or 0)


def _before(decided: Row) -> dict[str, Value]:
    """Return the values of `_BEFORE`, the condition that a decision about the same group precedes this one."""
    return {"group_id": decided.group_id, "era": decided.era, "seq": decided.seq}


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _place(cause: Row) -> tuple[str, int, int]:
    return cause.topic, cause.partition, cause.offset


def _record(cause: Row) -> str:
    return f"{cause.topic}-{cause.partition}@{cause.offset}"


def _why_not(ledger: Ledger, group_id: str, queue: Queue, at_ms: int | None) -> str:
    """Return the error for a queue that has no hand-over in an existing group."""
    rows = ledger.rows(
        "select distinct queue.topic as topic from handovers where group_id = $group_id order by topic limit 20",
        group_id=group_id,
    )
    if rows:
        when = "" if at_ms is None else f" until {EpochMs(at_ms)}"
        topics = ", ".join(row.topic for row in rows)
        if others := _queues_of_partition(ledger, group_id, queue, _until(at_ms)):
            return f"{queue} never had an owner in {group_id}{when}; its partition has {', '.join(others)}"
        return f"{queue} never had an owner in {group_id}{when}; the group has queues of {topics}"
    return f"no queue has an owner in {group_id}: in a broadcasting group every member reads every queue"
