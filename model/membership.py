"""Who is in a group: joining, leaving, expiring, and being replaced by a new life of the same client."""

from model import broadcast, conflicts, handover
from model.config import FORGET_MS, GONE_MS, LAST_INSTANCES, MAX_EPOCH_JUMP
from model.decisions import Change, Fenced, FencedReason, How, Membership, Rejected
from model.events import Heartbeat, Mode, Subscription, Unregister
from model.group import Gone, Member, Turn


def heartbeat(turn: Turn, beat: Heartbeat) -> None:
    """A client lives: let it join, supersede its former life, or take note of what it says.

    An unknown client joins, whatever it shows: one that was expired and did not hear of it comes back this way.  An
    instance that was superseded or has unregistered is not heard again.
    """
    group = turn.group
    member = group.members.get(beat.client_id)
    gone = group.gone.get(beat.client_id)
    if beat.instance_id in (member.superseded if member else gone.instances if gone else ()):
        if member:
            conflicts.note_intruder(turn, beat, member)
        return
    if beat.mode != _mode_for(turn, beat, member):
        detail = f"mode is {beat.mode!r}; the group consumes by {group.mode!r}, as its oldest member does"
        turn.say(_refusal(beat, "mode", detail))
        turn.say(_fenced(turn, beat.client_id, beat.instance_id, "refused"))
        return
    if beat.epoch > group.epoch + MAX_EPOCH_JUMP:
        limit = f"{group.epoch} + {MAX_EPOCH_JUMP}"
        turn.say(_refusal(beat, "epoch", f"epoch is {beat.epoch}; the group's is raised to at most {limit}"))
        return
    if member is None:
        _join(turn, beat, gone.instances if gone else [])
    elif member.instance_id != beat.instance_id:
        _supersede(turn, beat, member)
    else:
        _renew(turn, beat, member)


def unregister(turn: Turn, event: Unregister) -> None:
    """A client leaves in good order; its instance is remembered, so that a late heartbeat does not bring it back."""
    group = turn.group
    member = group.members.get(event.client_id)
    if member is None:
        _remember(turn, event.client_id, [event.instance_id])
    elif member.instance_id == event.instance_id:
        _say(turn, event.client_id, member, "left")
        turn.say(_fenced(turn, event.client_id, member.instance_id, "left"))
        _remove(turn, event.client_id, "unregistered")
        _remember(turn, event.client_id, [*member.superseded, member.instance_id])
        turn.ask("leave")
        conflicts.review_all(turn)
        _note_if_empty(turn)


def expire(turn: Turn) -> None:
    """Remove who was silent for more than the session timeout; forget what is long gone."""
    group, now_ms = turn.group, turn.moment.now_ms
    silent = [
        (client_id, member) for client_id, member in group.members.items() if now_ms >= group.session_ends_ms(member)
    ]
    if silent and turn.moment.may_expire:
        for client_id, member in silent:
            _say(turn, client_id, member, "expired", f"silent for {now_ms - member.seen_ms} ms")
            turn.say(_fenced(turn, client_id, member.instance_id, "expired"))
            _remove(turn, client_id, "expired")
            if member.superseded:
                _remember(turn, client_id, member.superseded)
        turn.ask("expire")
        conflicts.review_all(turn)
        _note_if_empty(turn)
    for client_id in [name for name, gone in group.gone.items() if now_ms >= gone.until_ms]:
        del group.gone[client_id]
    broadcast.forget(turn)
    if group.emptied_ms >= 0 and now_ms - group.emptied_ms >= FORGET_MS:
        # The epoch stays, so that none is used twice; so do the settings, which an operator made.
        group.target, group.freed, group.gone, group.emptied_ms = {}, {}, {}, -1
        group.offsets, group.consumed, group.added, group.recovering_until_ms = {}, [], {}, -1
        group.own_offsets, group.resets = {}, []
        turn.say(Membership(group_id=group.group_id, client_id="", change="forgotten", epoch=group.epoch))


def _join(turn: Turn, beat: Heartbeat, superseded: list[str]) -> None:
    group = turn.group
    if len(group.members) >= group.settings.max_members:
        turn.say(_fenced(turn, beat.client_id, beat.instance_id, "refused"))
        return
    member = _member(turn, beat, superseded)
    group.gone.pop(beat.client_id, None)
    group.members[beat.client_id] = member
    group.emptied_ms = -1
    group.remind(group.session_ends_ms(member))
    _say(turn, beat.client_id, member, "joined", ", ".join(sorted(member.subscriptions)))
    _settle_in(turn, beat, member)


def _supersede(turn: Turn, beat: Heartbeat, old: Member) -> None:
    """A new life of a known client: the old one is out at once, and all it held is free."""
    client_id = beat.client_id
    handover.free_all(turn, client_id, "replaced")
    turn.say(_fenced(turn, client_id, old.instance_id, "replaced", by=beat.instance_id))
    member = _member(turn, beat, [*old.superseded, old.instance_id][-LAST_INSTANCES:])
    member.replaced_ms = old.replaced_ms
    turn.group.members[client_id] = member
    _say(turn, client_id, member, "replaced", f"instance {old.instance_id} by {beat.instance_id}")
    conflicts.note_replacement(turn, client_id, member)
    _settle_in(turn, beat, member)


def _settle_in(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """A new member, or a new life of one, asks for its share, or has all of it at once."""
    turn.ask("join")
    handover.take_claims(turn, beat, member)
    if turn.group.is_broadcasting:
        broadcast.welcome(turn, beat.client_id, beat.owned)
    handover.note_claims(turn, beat, member)
    conflicts.review(turn, beat.client_id)


def _mode_for(turn: Turn, beat: Heartbeat, member: Member | None) -> Mode:
    """Return how a client must consume: as the others do; one that is alone may change that with a new life."""
    group = turn.group
    alone = not group.members or (len(group.members) == 1 and member is not None)
    if alone and (member is None or member.instance_id != beat.instance_id):
        return beat.mode
    return group.mode


def _renew(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Take note of a known instance's heartbeat; one with an epoch below what it showed already only proves life."""
    group = turn.group
    member.seen_ms = turn.moment.now_ms
    if beat.epoch < member.shown_epoch:
        return
    member.shown_epoch = beat.epoch
    knows = beat.epoch >= member.sent_epoch >= 0 and beat.epoch > group.configured_epoch
    if knows and member.session_ms != group.settings.session_timeout_ms:
        member.session_ms = group.settings.session_timeout_ms
        group.remind(group.session_ends_ms(member))
    wanted = {
        subscription.topic: _newer(member.subscriptions.get(subscription.topic), subscription)
        for subscription in beat.subscriptions
    }
    changed = wanted.keys() != member.subscriptions.keys()
    if changed:
        _say(turn, beat.client_id, member, "resubscribed", _difference(member.subscriptions, wanted))
        turn.ask("subscription")
    reworded = wanted != member.subscriptions
    member.subscriptions = wanted
    rethought = _take_wishes(member, beat)
    if rethought:
        group.stale = True
        group.remind(group.checked_ms + group.settings.rebalance_interval_ms)
    if reworded or rethought:
        conflicts.review(turn, beat.client_id)
    handover.take_receipt(turn, beat, member)
    handover.take_claims(turn, beat, member)
    if changed and group.is_broadcasting:
        broadcast.give(turn, beat.client_id)
    handover.tell_again(turn, beat, member)


def _newer(known: Subscription | None, shown: Subscription) -> Subscription:
    """Take a subscription with a higher version; of an equal or lower one, what is known stays."""
    return shown if known is None or shown.version > known.version else known


_WISHES = ("strategy", "strategy_params", "consume_from", "consume_from_ms", "orderly", "room", "weight")


def _take_wishes(member: Member, beat: Heartbeat) -> bool:
    """Take what a heartbeat may change without being a CHANGE; return whether anything differs."""
    differs = False
    for name in _WISHES:
        if getattr(member, name) != getattr(beat, name):
            setattr(member, name, getattr(beat, name))
            differs = True
    return differs


def _member(turn: Turn, beat: Heartbeat, superseded: list[str]) -> Member:
    member = Member(
        instance_id=beat.instance_id,
        superseded=superseded,
        seen_ms=turn.moment.now_ms,
        subscriptions={subscription.topic: subscription for subscription in beat.subscriptions},
        shown_epoch=beat.epoch,
        since_ms=turn.moment.now_ms,
        mode=beat.mode,
    )
    _take_wishes(member, beat)
    return member


def _remove(turn: Turn, client_id: str, how: How) -> None:
    handover.free_all(turn, client_id, how)
    del turn.group.members[client_id]


def _remember(turn: Turn, client_id: str, instances: list[str]) -> None:
    """Keep the instances of a client that left, newest last."""
    group = turn.group
    known = group.gone[client_id].instances if client_id in group.gone else []
    kept = [*(name for name in known if name not in instances), *instances][-LAST_INSTANCES:]
    group.gone[client_id] = Gone(kept, turn.moment.now_ms + GONE_MS)
    group.remind(turn.moment.now_ms + GONE_MS)


def _note_if_empty(turn: Turn) -> None:
    group = turn.group
    if not group.members:
        group.emptied_ms = turn.moment.now_ms
        group.remind(group.emptied_ms + FORGET_MS)
        turn.say(Membership(group_id=group.group_id, client_id="", change="emptied", epoch=group.epoch))


def _difference(before: dict[str, Subscription], after: dict[str, Subscription]) -> str:
    """Say which topics came and went: ``+payments -orders``."""
    added = [f"+{topic}" for topic in sorted(after.keys() - before.keys())]
    return " ".join(added + [f"-{topic}" for topic in sorted(before.keys() - after.keys())])


def _say(turn: Turn, client_id: str, member: Member, change: Change, detail: str = "") -> None:
    group = turn.group
    turn.say(
        Membership(
            group_id=group.group_id,
            client_id=client_id,
            instance_id=member.instance_id,
            change=change,
            epoch=group.epoch,
            detail=detail,
        )
    )


def _fenced(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> Fenced:
    return Fenced(group_id=turn.group.group_id, client_id=client_id, instance_id=instance_id, reason=reason, by=by)


def _refusal(beat: Heartbeat, rule: str, detail: str) -> Rejected:
    return Rejected(rule=rule, detail=detail, group_id=beat.group_id, client_id=beat.client_id)
