"""The facts about a group from which its verdict and its summary are derived."""

from collections.abc import Iterator, Mapping

from msgspec import structs

from wakeroll_model import slicing
from wakeroll_model.config import WAITING_MS
from wakeroll_model.coordinator_log.kafka_group import KafkaGroup
from wakeroll_model.decisions import Rebalance
from wakeroll_model.group import Group, Rebalanced
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.strategies import pinned
from wakeroll_model.target import strategy_of
from wakeroll_pipeline.live.decision_feed import GroupHistory
from wakeroll_pipeline.live.group_lags import GroupLags, mode_of
from wakeroll_pipeline.live.verdicts import GroupFacts, QueueFacts, clock, findings
from wakeroll_pipeline.live.view_structs import GroupSummary

_BY_OPERATORS = ("config", "reset", "kick", "pause")
"""Triggers of rebalances that an operator requested."""


def queues_of(group: Group, routes: Routes) -> list[Queue]:
    """Return the queues of a group, sorted: those of the topics that it subscribes, and those with stored offsets.

    For a partition that is cut, these are its slices, and former slices as long as they have owners; they do not
    overlap.
    """
    found = {queue for topic in group.topics for queue in routes.queues(topic) or ()}
    if group.sliced and mode_of(group) == "clustering":
        found = {piece for queue in found for piece in slicing.pieces(group, routes, queue)}
    owned = owners_of(group)
    if group.is_learning:  # the state does not have its owners, and may not have the numbers of slices
        found -= {queue.whole for queue in owned if queue.slices > 1}
    found.update(owned)
    if not group.members:
        own = [one.offsets for one in group.broadcast_offsets.values()]
        stored = [group.offsets] if mode_of(group) == "clustering" else own
        found.update(queue for offsets in stored for queue in offsets if not routes.lacks(queue.whole))
    return sorted(found)


def owners_of(group: Group) -> Mapping[Queue, str]:
    """Return queue -> its owner.

    While the state is only learned from the log, the model's map of owners is not that of the coordinator: the owner is
    the member whose last heartbeat lists the queue.
    """
    if not group.is_learning:
        return group.owners
    members = group.members.items()
    return {queue: client_id for client_id, one in members for queue in group.listed.get(one.instance_id, ())}


def summary_of(
    group: Group,
    queues: list[Queue],
    lags: GroupLags,
    history: GroupHistory,
    free_since: Mapping[Queue, int],
    now_ms: int,
    clock_ms: int,
) -> GroupSummary:
    """Return the summary of a group with its verdict.

    Args:
        group: state of the group.
        queues: queues of the group, as `queues_of` returns them.
        lags: lags of the queues.
        history: the decisions about it.
        free_since: queue without owner -> log time since which it has no owner (epoch ms).
        now_ms: log time, epoch ms.
        clock_ms: the clock of the group's shard, ms.
    """
    published = history.rebalances[-1].decision if history.rebalances else None
    last: Rebalance | Rebalanced | None = group.rebalanced
    if published is not None and (last is None or published.at_ms > last.at_ms):  # a state of an earlier release
        last = published
    why_free = {one.queue: one.reason for one in published.unassigned} if published is not None else {}
    since = _uncommitted_since(group, lags, history)
    troubled = list(_troubled(group, queues, lags, free_since, why_free, since))
    facts = GroupFacts(
        now_ms=now_ms,
        members=len(group.members),
        lag=lags.total,
        unknown=len(lags.unknown),
        queues=troubled,
        rebalances=[
            (one.decision.at_ms, one.decision.trigger)
            for one in history.rebalances
            if one.decision.moved and one.decision.trigger not in _BY_OPERATORS
        ],
        conflicts=[f"{client_id}: {detail}" for client_id, detail in group.conflicts.items()],
        duplicates=list(_duplicates(group, clock_ms)),
        watched_ms=0 if lags.since_ms is None else now_ms - lags.since_ms,
        paused=_paused(group, now_ms),
        is_learning=group.is_learning,
    )
    found = findings(facts)
    late = [one.behind for one in lags.queues.values() if one.behind is not None]
    oldest = min(late, default=None)
    return GroupSummary(
        group_id=group.group_id,
        verdict=found[0].kind,
        reason=found[0].reason,
        findings=found,
        mode=mode_of(group),
        strategy=strategy_of(group)[0] if group.members else _strategy_before(group, history),
        epoch=group.epoch,
        topics=group.topics,
        members=len(group.members),
        queues=len(queues),
        unowned=len(free_since),
        moving=sum(len(member.revoking) for member in group.members.values()),
        lag_messages=lags.total,
        lag_queues=sum(1 for lag in lags.queues.values() if lag.lag),
        lag_unknown=len(lags.unknown),
        behind_since_ms=None if oldest is None else oldest.since_ms,
        behind_is_longer=oldest is not None and oldest.is_longer,
        rebalanced_ms=None if last is None else last.at_ms,
        trigger="" if last is None else last.trigger,
        moved=0 if last is None else last.moved,
        owned=len(owners_of(group)),
        max_lag_messages=lags.largest,
        **structs.asdict(lags.rates),
    )


def _paused(group: Group, now_ms: int) -> str:
    """Return operator, time and reason of a group's pause as a sentence; empty if it is not paused."""
    one = group.paused
    if one is None:
        return ""
    return f"paused by {one.by} since {clock(one.at_ms, now_ms)} UTC{one.reason and ': '}{one.reason}"


def _strategy_before(group: Group, history: GroupHistory) -> str:
    """Return the strategy of a group without members: that of its settings, or that which last assigned queues.

    It is empty if none is known.
    """
    if group.settings.strategy:
        return group.settings.strategy
    if group.rebalanced is not None:
        return group.rebalanced.strategy
    published = (one.decision.strategy for one in reversed(history.rebalances))
    return next(filter(None, published), "")


def free_queues(group: Group, queues: list[Queue]) -> Iterator[Queue]:
    """Yield the queues without an owner although the group has members; none in a broadcasting group."""
    if group.members and group.mode == "clustering":
        owners = owners_of(group)
        yield from (queue for queue in queues if queue not in owners)


def _troubled(
    group: Group,
    queues: list[Queue],
    lags: GroupLags,
    free_since: Mapping[Queue, int],
    why_free: Mapping[Queue, str],
    uncommitted_since: Mapping[Queue, int],
) -> Iterator[QueueFacts]:
    """Yield the facts about queues that have lag, grow without commits, or have no owner or no committed offset."""
    broadcasts, owners = group.mode == "broadcasting", owners_of(group)
    for queue in queues:
        lag, free_ms = lags.queues.get(queue), free_since.get(queue)
        since_ms = uncommitted_since.get(queue)
        if free_ms is None and since_ms is None and (lag is None or not (lag.lag or lag.grown)):
            continue
        yield QueueFacts(
            name=str(queue),
            partition=str(queue.whole),
            owner="every member" if broadcasts else owners.get(queue, ""),
            lag=0 if lag is None else lag.lag or 0,
            grown=0 if lag is None else lag.grown,
            moved_ms=0 if lag is None else lag.moved_ms,
            not_fallen_ms=None if lag is None else lag.not_fallen_ms,
            behind_ms=None if lag is None or lag.behind is None else lag.behind.since_ms,
            free_ms=free_ms,
            uncommitted_ms=since_ms,
            why_free=why_free.get(queue, ""),
        )


def _uncommitted_since(group: Group, lags: GroupLags, history: GroupHistory) -> Mapping[Queue, int]:
    """Return queue -> log time of its assignment (epoch ms), for owned queues with messages and no committed offset.

    If an assignment is older than the history, the time at which this model first had the queue is used. Kafka's own
    groups are left out, because their members need not commit their start.
    """
    if group.settings.strategy == pinned.NAME or isinstance(group, KafkaGroup):
        return {}
    owned = set(group.topics) if group.mode == "broadcasting" else None
    owners = owners_of(group)
    silent = [
        queue
        for queue, lag in lags.queues.items()
        if lag.committed is None and lag.lag != 0 and lag.end is not None
        if (queue.topic in owned if owned is not None else queue in owners)
    ]
    if not silent or group.is_learning or not group.members:
        return {}
    given = {one.queue: one.at_ms for one in history.handovers if one.to is not None}
    return {queue: given.get(queue, lags.queues[queue].moved_ms) for queue in silent}


def _duplicates(group: Group, clock_ms: int) -> Iterator[str]:
    """Yield a sentence for each client id that another live instance uses.

    The state keeps the last heartbeat of an instance that waited, also when its process has left or died.
    """
    for client_id, member in group.members.items():
        if member.rival is not None and clock_ms - member.rival.seen_ms <= WAITING_MS:
            rival = member.rival.beat.instance_id
            yield f"{client_id} is used by two processes: {member.instance_id} is the member, {rival} waits"
