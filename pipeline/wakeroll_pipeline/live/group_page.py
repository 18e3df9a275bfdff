"""The view of one group for its page: members, queues, hand-overs, held pulls and settings."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct, structs

from wakeroll_model.decision_order import order_of
from wakeroll_model.decisions import Cause, FailedMessages, Handover, Membership, Rebalance, Rejected
from wakeroll_model.group import Group, GroupSettings, Member, Received
from wakeroll_model.held_queue import HeldQueue
from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.decision_feed import HISTORY_MS, GroupHistory, Published
from wakeroll_pipeline.live.group_lags import GroupLags, committed_of, furthest_behind
from wakeroll_pipeline.live.ownership_lanes import lanes_of
from wakeroll_pipeline.live.queue_lag import QueueLag
from wakeroll_pipeline.live.queue_rates import NOT_KNOWN, rates_of_all
from wakeroll_pipeline.live.view_structs import (
    FailureRow,
    GroupSummary,
    GroupView,
    Health,
    HoldRow,
    KeptOutRow,
    LongCallRow,
    MemberRow,
    MoveRow,
    QueueRow,
    RebalanceRow,
    RejectionRow,
    ReportRow,
    SettingRow,
    SubscriptionRow,
)

SHOWN_REBALANCES = 20
SHOWN_MOVES = 500
"""Maximum number of moves that one rebalance lists."""


class GroupSources(Struct, frozen=True, kw_only=True):
    """The sources of a view of one group."""

    group: Group
    owners: Mapping[Queue, str]
    """Queue -> its owner."""
    summary: GroupSummary
    queues: list[Queue]
    lags: GroupLags
    history: GroupHistory
    since_ms: int | None
    """Log time from which on decisions are known (epoch ms); None if no decision is known."""
    now_ms: int
    """Log time (epoch ms)."""
    skew_ms: int
    """Log time minus the clock of the group's shard (ms): the clock stands still while the log is dark."""
    held_queue: Callable[[Queue], tuple[HeldQueue | None, int]]
    """Returns the state of a queue in long polling, and the skew of its shard (ms)."""


def group_view(sources: GroupSources, health: Health) -> GroupView:
    """Return the view of a group."""
    group, now_ms = sources.group, sources.now_ms
    holds = list(_holds(sources))
    waiting = {(hold.queue, hold.client_id) for hold in holds}
    from_ms = max(now_ms - HISTORY_MS, min(sources.since_ms or now_ms, now_ms - 60_000))
    return GroupView(
        health=health,
        summary=sources.summary,
        members=member_rows(sources),
        queues=[_queue_row(sources, queue, waiting) for queue in sources.queues],
        lanes=lanes_of(sources.queues, sources.owners, sources.history.handovers, from_ms, now_ms),
        lanes_from_ms=from_ms,
        lanes_to_ms=now_ms,
        rebalances=rebalance_rows(sources.history),
        holds=holds,
        rejections=[_rejection_row(one) for one in reversed(sources.history.rejections)],
        settings=list(_setting_rows(group.settings)),
        lag_series=list(sources.lags.series),
        rebalances_from_ms=from_ms,
        kept_out=[
            KeptOutRow(client_id=name, by=one.by, reason=one.reason, until_ms=one.until_ms + sources.skew_ms)
            for name, one in sorted(group.kicks.items())
            if one.until_ms
        ],
        failures=[_failure_row(one) for one in reversed(sources.history.failures)],
        reports=[
            ReportRow(at_ms=one.at_ms, client_id=one.client_id, instance_id=one.instance_id, text=one.detail)
            for one in reversed(sources.history.reports)
        ],
    )


def member_rows(sources: GroupSources) -> list[MemberRow]:
    """Return the members of a group."""
    group = sources.group
    waits = Counter(wanted for queue, wanted in group.target.items() if sources.owners.get(queue) != wanted)
    owned: dict[str, dict[Queue, QueueLag]] = {}
    for queue, owner in sources.owners.items():
        owned.setdefault(owner, {})[queue] = sources.lags.queues.get(queue) or QueueLag(sources.now_ms)
    rows = []
    for client_id, member in group.members.items():
        if group.mode == "broadcasting":
            lags, rates = _own_lags(sources, client_id, member), NOT_KNOWN
        else:
            partitions = furthest_behind(owned.get(client_id, {}))
            lags = [one.lag for one in partitions]
            rates = rates_of_all(_sum(lags), [one.rates for one in partitions])
        rows.append(_member_row(sources, client_id, member, waits[client_id], lags, rates.catch_up_ms))
    return rows


def _own_lags(sources: GroupSources, client_id: str, member: Member) -> list[int | None]:
    """Return the lags of a member of a broadcasting group in the queues that it reads; None if one is not known."""
    own = sources.group.broadcast_offsets.get(client_id)
    offsets = {} if own is None else own.offsets
    lags = [
        (offsets.get(queue), sources.lags.queues.get(queue))
        for queue in sources.queues
        if queue.topic in member.subscriptions
    ]
    return [
        None if committed is None or lag is None or lag.end is None else max(lag.end - committed, 0)
        for committed, lag in lags
    ]


def _sum(lags: Sequence[int | None]) -> int | None:
    """Return the sum of the known lags; None if none is known."""
    known = [one for one in lags if one is not None]
    return sum(known) if known else None


def _member_row(
    sources: GroupSources,
    client_id: str,
    member: Member,
    waits: int,
    lags: Sequence[int | None],
    catch_up_ms: int | None,
) -> MemberRow:
    group = sources.group
    return MemberRow(
        client_id=client_id,
        instance_id=member.instance_id,
        queues=len(member.owned),
        releasing=len(member.revoking),
        waiting=waits if group.mode == "clustering" else 0,
        shown_epoch=member.shown_epoch,
        sent_epoch=member.sent_epoch,
        seen_ms=member.seen_ms + sources.skew_ms,
        session_ends_ms=group.session_ends_ms(member) + sources.skew_ms,
        room=member.room,
        weight=member.weight,
        strategy=member.strategy,
        consume_from=member.consume_from,
        subscriptions=[
            SubscriptionRow(topic=one.topic, expression=one.expression, expression_type=one.expression_type)
            for one in member.subscriptions.values()
        ],
        pattern=member.pattern,
        **({} if member.about is None else structs.asdict(member.about)),
        conflict=group.conflicts.get(client_id, ""),
        rival="" if member.rival is None else member.rival.beat.instance_id,
        leaving=_leaving(group, client_id),
        lag_messages=_sum(lags),
        lag_unknown=sum(one is None for one in lags),
        catch_up_ms=catch_up_ms,
        joined_ms=member.joined_ms if member.joined_ms >= 0 else _published_join(sources.history, member),
        handling=[
            LongCallRow(
                queue=str(one.queue),
                first_offset=one.first_offset,
                last_offset=one.last_offset,
                since_ms=one.since_ms,
            )
            for one in member.handling
        ],
    )


def _leaving(group: Group, client_id: str) -> str:
    """Return operator and reason of a member's kick, in words; empty if the member need not leave."""
    if not group.is_leaving(client_id):
        return ""
    kicked = group.kicks[client_id]
    return f"kicked by {kicked.by}" + (f": {kicked.reason}" if kicked.reason else "")


def _published_join(history: GroupHistory, member: Member) -> int | None:
    """Return when an instance joined, by the known decisions, for a state of an earlier release; None if not known."""
    joins = (one for one in reversed(history.changes) if one.change == "joined")
    return next((one.at_ms for one in joins if one.instance_id == member.instance_id), None)


def _queue_row(sources: GroupSources, queue: Queue, waiting: set[tuple[str, str]]) -> QueueRow:
    group, lag = sources.group, sources.lags.queues.get(queue)
    owner = sources.owners.get(queue, "")
    member = group.members.get(owner)
    wanted = group.target.get(queue, "")
    behind = None if lag is None else lag.behind
    name, committed = str(queue), committed_of(group, queue)
    change = _last_change(sources, queue, owner)
    return QueueRow(
        name=name,
        topic=queue.topic,
        broker=queue.broker,
        queue_id=queue.queue_id,
        slice=queue.slice_text,
        owner=owner,
        releasing=member is not None and queue in member.revoking,
        next_owner=wanted if wanted != owner else "",
        given_epoch=None if member is None else member.owned.get(queue),
        committed_offset=committed,
        end_offset=max(lag.end, committed or 0) if lag is not None and lag.end is not None else None,
        lag_messages=None if lag is None else lag.lag,
        behind_since_ms=None if behind is None else behind.since_ms,
        behind_is_longer=behind is not None and behind.is_longer,
        trend="none" if lag is None else lag.trend,
        samples=[] if lag is None else list(lag.samples),
        committed_ms=None if lag is None or lag.committed is None else lag.moved_ms,
        is_held=(str(queue.whole), owner) in waiting,
        note=_note(sources, queue),
        from_ms=None if change is None else change.at_ms,
        epoch=None if change is None or change.epoch < 0 else change.epoch,
        previous_client_id=None if change is None else change.before,
        how="" if change is None else change.how,
        **({} if lag is None else structs.asdict(lag.rates)),
    )


def _last_change(sources: GroupSources, queue: Queue, owner: str) -> Received | None:
    """Return the last change of a queue's owner; None if it is not known, or there was none.

    A state of an earlier release, or one that was only restored from the log, does not have it. Then it is the
    published hand-over to the owner, if that is known.
    """
    group = sources.group
    if owner and group.owners.get(queue) == owner and queue in group.received:
        return group.received[queue]
    if not owner and (freed := group.freed.get(queue)) is not None:
        return Received(freed.epoch, freed.at_ms, freed.how, freed.client_id)
    last = next((one for one in reversed(sources.history.handovers) if one.queue == queue), None)
    if last is None or (last.to or "") != owner:
        return None
    return Received(last.epoch, last.at_ms, last.how, last.from_)


def _note(sources: GroupSources, queue: Queue) -> str:
    """Return why a queue has no owner, or the filters for which it is ahead of its committed offset; else empty.

    The result is also empty if the reason is not known.
    """
    group, history = sources.group, sources.history
    if ahead := group.ahead.get(queue):
        done = ", ".join(f"{one.expression_type} {one.expression!r:.100} to {one.offset}" for one in ahead)
        return f"processed for {done}; messages from {group.offsets[queue]} on are kept for members with other filters"
    if queue in sources.owners or group.mode == "broadcasting" or not history.rebalances:
        return ""
    last = history.rebalances[-1].decision
    return next((one.reason for one in last.unassigned if one.queue == queue), "")


def _holds(sources: GroupSources) -> Iterator[HoldRow]:
    """Yield the held pulls of the group's members."""
    group = sources.group
    for queue in dict.fromkeys(one.whole for one in sources.queues):
        held, skew_ms = sources.held_queue(queue)
        if held is None or not held.holds:
            continue
        for hold in held.holds.values():
            if hold.group_id == group.group_id:
                yield HoldRow(
                    queue=str(queue),
                    client_id=hold.client_id,
                    from_offset=hold.from_offset,
                    since_ms=hold.since_ms + skew_ms,
                    until_ms=hold.until_ms + skew_ms,
                )


def rebalance_rows(history: GroupHistory, most: int = SHOWN_REBALANCES) -> list[RebalanceRow]:
    """Return the last rebalances, the newest one first, each with the hand-overs until the next one."""
    rebalances = list(history.rebalances)[-most:]
    handovers: dict[int, list[MoveRow]] = {one.decision.epoch: [] for one in rebalances}
    counts: Counter[int] = Counter()
    for one in history.handovers:
        if one.epoch in handovers:
            counts[one.epoch] += 1
            if counts[one.epoch] <= SHOWN_MOVES:
                handovers[one.epoch].append(_move_row(one, history.changes))
    return [
        _rebalance_row(published, handovers[published.decision.epoch], history.operators)
        for published in reversed(rebalances)
    ]


def _rebalance_row(
    published: Published[Rebalance], moves: list[MoveRow], operators: Mapping[tuple[str, int, int], str]
) -> RebalanceRow:
    one = published.decision
    named = [operators.get((cause.topic, cause.partition, cause.offset), "") for cause in one.causes]
    return RebalanceRow(
        epoch=one.epoch,
        at_ms=one.at_ms,
        published_ms=published.published_ms,
        trigger=one.trigger,
        cause=", ".join(map(_record, one.causes)),
        by=", ".join(filter(None, dict.fromkeys(named))),
        strategy=one.strategy,
        clients=one.clients,
        queues=one.queues,
        moved=one.moved,
        unassigned=one.unassigned_count or len(one.unassigned),
        notes=one.notes,
        moves=moves,
        spread=one.spread,
    )


def _move_row(one: Handover, changes: Sequence[Membership]) -> MoveRow:
    begin_ms = one.released_ms if one.revoked_ms is None else one.revoked_ms
    took_ms = None if begin_ms is None or one.assigned_ms is None else max(one.assigned_ms - begin_ms, 0)
    return MoveRow(
        queue=str(one.queue),
        before=one.from_ or "",
        after=one.to or "",
        how=one.how,
        at_ms=one.at_ms,
        took_ms=took_ms,
        silent_ms=_silent_ms(one, changes) if one.how == "expired" else None,
    )


def _silent_ms(handover: Handover, changes: Sequence[Membership]) -> int | None:
    """Return how long the owner had been silent when it expired, as in the view `silences`."""
    place = order_of(handover.shard, handover.seq)
    for one in reversed(changes):
        is_earlier = order_of(one.shard, one.seq) < place
        if one.client_id == handover.from_ and one.change == "expired" and is_earlier:
            found = _SILENCE.match(one.detail)
            return int(found[1]) if found else None
    return None


_SILENCE = re.compile(r"no heartbeat for ([0-9]+) ms")
"""Detail of the change of a member that expires."""


def _rejection_row(published: Published[Rejected]) -> RejectionRow:
    one = published.decision
    return RejectionRow(
        at_ms=one.at_ms, rule=one.rule, detail=one.detail, client_id=one.client_id or "", record=_record(one.cause)
    )


def _failure_row(one: FailedMessages) -> FailureRow:
    return FailureRow(
        at_ms=one.at_ms,
        client_id=one.client_id,
        queue=str(one.queue),
        first_offset=one.first_offset,
        last_offset=one.last_offset,
        messages=one.messages,
        attempt=one.attempt,
        outcome=one.outcome,
        error=one.error,
    )


def _record(cause: Cause) -> str:
    return f"{cause.topic}-{cause.partition}@{cause.offset}"


def _setting_rows(settings: GroupSettings) -> Iterator[SettingRow]:
    default = GroupSettings()
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        yield SettingRow(name=name, value=_text(name, value), is_default=value == getattr(default, name))


def _text(name: str, value: Any) -> str:
    if value is None:
        return "that of the oldest member" if name == "strategy" else "none"
    if name.endswith("_ms"):
        return f"{value / 1_000:g} s"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
