"""The group machine: it processes one event and its moment, changes the group's state, and returns decisions.

`step` runs these stages, and passes the outcome of one to the next:

1. admit: is there room for one more group? (`admission`)
2. handle: change members, offsets, locks or settings. (`membership`, `commits`, `locks`, `topic_changes`, `releases`,
   `failed_messages`)
3. learn: take offsets from the log of a former era. (`learning`)
4. retarget: compute who should own which queue, if there is a reason; revoke and assign queues. (`modes`, `target`)
5. settle: assign queues that were freed, and record those that stay free. (`handover`)
6. send: send changed assignments to their clients. (`assignments`)
7. dismiss: remove kicked members that own nothing any more, and repeat 4 to 6 for them. (`kicks`)
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any, assert_never

from msgspec import UNSET, structs

from wakeroll_model import (
    admission,
    assignment_limits,
    assignments,
    broadcast_offsets,
    clustering_offsets,
    commits,
    config,
    conflicts,
    deletions,
    differing_filters,
    events,
    failed_messages,
    feature_levels,
    handover,
    inspections,
    kicks,
    learning,
    locks,
    membership,
    patterns,
    pauses,
    preferences,
    releases,
    slicing,
    topic_changes,
)
from wakeroll_model.config import BEATS_PER_SESSION, DEFAULT_LIMITS, NEVER_MS, PROFILES, Limits
from wakeroll_model.decisions import AnyDecision, Cause, Rebalance, Rejected, Trigger
from wakeroll_model.events import (
    Commit,
    Configure,
    Delete,
    Failures,
    GroupEvent,
    Heartbeat,
    Inspect,
    Kick,
    Matches,
    Pause,
    Report,
    Request,
    Reset,
    Route,
    Tick,
    Unregister,
)
from wakeroll_model.group import IF_DIFFERENT, Group
from wakeroll_model.known_routes import Routes
from wakeroll_model.modes import sharing_of
from wakeroll_model.shard_clock import Moment
from wakeroll_model.shard_load import NOTHING as NO_LOAD
from wakeroll_model.shard_load import Load
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined, sending


def step(
    group: Group,
    event: GroupEvent,
    moment: Moment,
    cause: Cause,
    routes: Routes,
    load: Load = NO_LOAD,
    limits: Limits = DEFAULT_LIMITS,
    level: int = feature_levels.FIRST,
) -> list[AnyDecision]:
    """Apply one event to a consumer group, in place.

    Args:
        group: the state before; changed into the state after.
        event: the event; a `Tick` if only time has passed, a `Route` for one of the group's topics.
        moment: the time of the event; `now_ms` is never earlier than in the last call.
        cause: the record of the event.
        routes: the queues of every routed topic, with this event's route.
        load: the load of the whole shard, with this group.
        limits: the limits of the deployment.
        level: the feature level of the shard.

    Returns:
        The decisions, in order and without their header.  A heartbeat that changes nothing leads to none.
    """
    turn = Turn(group, moment, cause, routes, load, limits, level)
    if refused := admission.no_more_groups(turn, event):
        return refused
    handled = _handle(turn, event)
    if group.is_learning:
        learning.listen(turn, event)
    is_tick = isinstance(event, Tick)
    _follow(turn, handled, is_tick=is_tick)
    if group.kicks and (dismissed := membership.dismiss(turn)) is not NOTHING:
        _follow(turn, dismissed)
    broadcast_offsets.forget_surplus(turn)
    if is_tick:
        group.due_ms = _next_due_ms(turn)
    return turn.decisions


def _follow(turn: Turn, handled: Outcome, *, is_tick: bool = False) -> None:
    """Run the stages after the handler: compute a new target, settle freed queues, and send assignments."""
    retargeted = _retarget(turn, handled.triggers) if handled.triggers or is_tick else NOTHING
    if handled is not NOTHING or retargeted is not NOTHING:
        assigned = handover.settle(turn, handled.freed + retargeted.freed)
        assignments.send(turn, handled.send | retargeted.send | assigned, handled.claims)


def _handle(turn: Turn, event: GroupEvent) -> Outcome:
    """Run the handler of the event; return what the later stages must do."""
    match event:
        case Heartbeat():
            return membership.heartbeat(turn, preferences.agreed(turn.group, event))
        case Unregister():
            return membership.unregister(turn, event)
        case Commit():
            commits.commit(turn, event)
        case Failures():
            failed_messages.record(turn, event)
        case Report():
            inspections.record(turn, event)
        case events.Lock():
            locks.lock(turn, event)
        case events.Unlock():
            locks.unlock(turn, event)
        case Reset() | Kick() | Delete() | Pause() | Inspect() | Configure():
            return _handle_request(turn, event)
        case Matches():
            return patterns.follow(turn, event)
        case Route():
            return combined(topic_changes.follow(turn, event), Outcome(triggers=("route",)))
        case Tick():
            return _pass_time(turn)
        case _:
            assert_never(event)
    return NOTHING


def _handle_request(turn: Turn, event: Request) -> Outcome:
    """Run the handler of an operator's request; return what the later stages must do."""
    match event:
        case Reset():
            return commits.reset(turn, event)
        case Kick():
            return kicks.kick(turn, event)
        case Delete():
            deletions.delete(turn, event)
        case Pause():
            return pauses.pause(turn, event)
        case Inspect():
            inspections.ask(turn, event)
        case Configure():
            return _configure(turn, event)
        case _:
            assert_never(event)
    return NOTHING


def _pass_time(turn: Turn) -> Outcome:
    """Process the deadlines that are due: of sessions, revocations, locks, a recovery, old state and the timer."""
    expired = membership.expire(turn)
    overdue = releases.release_overdue(turn)
    locks.expire(turn)
    recovered = handover.end_recovery(turn)
    topic_changes.forget(turn)
    compared = NOTHING if expired.triggers else _compare_again(turn)
    return combined(expired, overdue, recovered, compared)


def _configure(turn: Turn, event: Configure) -> Outcome:
    """Change the settings that the event names; keep the others."""
    group = turn.group
    named: dict[str, Any] = {} if event.profile is UNSET else dict(PROFILES[event.profile])
    named |= {name: value for name in group.settings.__struct_fields__ if (value := getattr(event, name)) is not UNSET}
    if event.slices is not UNSET:
        if wrong := slicing.wrong_numbers(group, event.slices):
            turn.emit(Rejected(rule="settings", detail=wrong, group_id=group.group_id))
            return NOTHING
        named["slices"] = slicing.with_numbers(group, event.slices)
    settings = structs.replace(group.settings, **named)
    if settings.session_timeout_ms < BEATS_PER_SESSION * settings.heartbeat_ms:
        detail = (
            f"session_timeout_ms would be {settings.session_timeout_ms}; it must be at least {BEATS_PER_SESSION} times "
            f"heartbeat_ms ({settings.heartbeat_ms})"
        )
        turn.emit(Rejected(rule="settings", detail=detail, group_id=group.group_id))
        return NOTHING
    more = settings.bytes - group.settings.bytes
    if full := admission.no_room(turn, more):
        turn.emit(Rejected(rule="limit", detail=full, group_id=group.group_id))
        return NOTHING
    group.bytes += more
    before, group.settings = group.settings, settings
    if event.slices is not UNSET:
        slicing.note_numbers(group, event.slices)
    group.configured_epoch = group.epoch
    if not group.members:  # an empty group is forgotten a week after the last change by an operator
        group.emptied_ms = turn.moment.now_ms
    for member in group.members.values():
        if member.sent_epoch >= 0:  # it may trust a longer session that was sent to it and that it has not shown yet
            member.session_ms = max(member.session_ms, before.session_timeout_ms)
        for revocation in member.revoking.values():
            revocation.timeout_ms = max(revocation.timeout_ms, settings.revoke_timeout_ms)
        member.sent_epoch = -1  # the assignment carries the session timeout, so it must be sent again
    group.remind(_next_due_ms(turn))  # shorter durations bring deadlines forward
    conflicts.review_all(turn)
    return Outcome(triggers=("config",))


def _compare_again(turn: Turn) -> Outcome:
    """Request a new target once per rebalance interval if something without a trigger in `CHANGE` may change it."""
    group = turn.group
    waiting = bool(group.pending)  # a target waits for the settle interval and will be compared anyway
    if group.stale and not waiting and turn.moment.now_ms - group.checked_ms >= group.settings.rebalance_interval_ms:
        return Outcome(triggers=("timer",))
    return NOTHING


def _retarget(turn: Turn, triggers: Iterable[Trigger]) -> Outcome:
    """Compute a new target for all pending requests, unless the last target is younger than the settle interval.

    From level 3 on, the first member of a group that was empty does not wait.
    `triggers`: the requests of this event; others may wait for the settle interval to pass.

    A route or the timer takes effect only if the target differs; every other trigger always begins a new epoch.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    for trigger in triggers:
        group.request_target(trigger, turn.cause)
    if not group.pending:
        return NOTHING
    is_settling = group.retargeted_ms >= 0 and now_ms - group.retargeted_ms < group.settings.settle_ms
    if is_settling and not _is_first(turn, triggers):
        group.remind(group.retargeted_ms + group.settings.settle_ms)
        return NOTHING
    sharing = sharing_of(group)
    target, differs = sharing.target(turn)
    asked, group.pending = group.pending, []
    group.checked_ms, group.stale = now_ms, target.looks_again
    if group.stale:
        group.remind(now_ms + group.settings.rebalance_interval_ms)
    if not differs and all(trigger in IF_DIFFERENT for trigger, _ in asked):
        return NOTHING
    moved = sum(1 for queue, client_id in target.owners.items() if group.target.get(queue, client_id) != client_id)
    group.epoch += 1
    group.retargeted_ms = now_ms
    clustering_offsets.note_added(group, target)
    topic_changes.note_idle(turn)
    group.target = target.owners
    group.note_rebalance(turn.moment.at_ms, asked[0][0], target.strategy, moved)
    turn.emit(
        Rebalance(
            group_id=group.group_id,
            epoch=group.epoch,
            trigger=asked[0][0],
            causes=[cause for _, cause in asked],
            strategy=target.strategy,
            clients=len(group.staying),
            queues=target.queues,
            moved=moved,
            unassigned=target.unassigned[: config.MAX_UNASSIGNED],
            unassigned_count=len(target.unassigned),
            spread=target.spread,
            notes=assignment_limits.first_notes(target.notes),
        )
    )
    followed = combined(sharing.follow_target(turn), sending(assignments.without_settings(group)))
    return combined(followed, sending(differing_filters.review(turn))) if turn.level >= 3 else followed


def _is_first(turn: Turn, triggers: Iterable[Trigger]) -> bool:
    """Return whether a member joins a group that was empty, so that no other member's queues could move again."""
    group = turn.group
    return turn.level >= 3 and "join" in triggers and len(group.members) == 1 and not group.target


def _next_due_ms(turn: Turn) -> int:
    """Return when a tick must process the group next, by the shard's clock."""
    group, settings = turn.group, turn.group.settings
    due = [NEVER_MS]
    due += [group.session_ends_ms(member) for member in group.members.values()]
    # In an ordered group too: its oldest member may leave, and then the timeouts apply.
    due += [revocation.ends_ms for member in group.members.values() for revocation in member.revoking.values()]
    if group.loss is not None:
        due.append(group.loss.ends_ms)
    due += [ended.until_ms for ended in islice(group.ended.values(), 1)]  # the others are due later
    due += [held.until_ms for held in group.locks.values()]
    due += [own.left_ms + turn.forget_ms for own in group.broadcast_offsets.values() if own.left_ms >= 0]
    due.append(topic_changes.next_due_ms(turn))
    if group.pending:
        due.append(group.retargeted_ms + settings.settle_ms)
    if group.stale:
        due.append(group.checked_ms + settings.rebalance_interval_ms)
    if group.emptied_ms >= 0:
        due.append(group.emptied_ms + turn.forget_ms)
    due.append(kicks.next_due_ms(group))
    return min(due)
