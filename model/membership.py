"""The members of a group: joining, leaving, expiring, and the one live instance of each client_id."""

from collections.abc import Iterable
from operator import attrgetter

from msgspec import structs

from model import admission, assignment_limits, broadcast, conflicts, handover, topic_changes
from model.config import DEAF_SESSIONS, ENDED_MS, FORGET_MS, MAX_RIVALS, SESSION_TIMEOUT_MS, WAITING_MS
from model.decisions import Change, Fenced, FencedReason, How, Membership, Rejected, Trigger
from model.events import Heartbeat, Mode, Subscription, Unregister
from model.group import EndedInstance, Group, GroupSettings, Loss, Member, Rival, Turn
from model.instance_secrets import may_end


def heartbeat(turn: Turn, beat: Heartbeat) -> None:
    """Let a client join, update a member, or answer an instance that is not the live one of its client_id.

    - An instance that ended is fenced again, whatever its heartbeat shows. It never becomes a member again.
    - If another live instance has the client_id, the new instance waits until that one has left or expired, as a static
      member does in Kafka's KIP-848 (UNRELEASED_INSTANCE_ID). It never replaces the live instance.
    - No assignment with an epoch above the group's was ever sent, so a heartbeat that shows one proves nothing.
    - After a loss of state, a newcomer waits as long as a member from before the loss may live unnoticed.
    """
    group = turn.group
    member = group.members.get(beat.client_id)
    if member is not None and member.instance_id == beat.instance_id:
        if beat.epoch > group.epoch:
            turn.say(_refusal(beat, "epoch", _never_given(group, beat)))
        elif beat.mode != group.mode:
            turn.say(
                _refusal(beat, "mode", f"mode is {beat.mode!r}; expected {group.mode!r}, as when this instance joined")
            )
        else:
            _renew(turn, beat, member)
        return
    ended = group.ended.get(_life(beat.client_id, beat.instance_id))
    if ended is not None:
        _tell_ended(turn, beat, ended)
    elif beat.epoch > group.epoch:
        _turn_away(turn, beat, "epoch", _never_given(group, beat), "epoch")
    elif group.loss is not None and beat.epoch < 0 and not beat.owned:
        pass  # it waits: members from before the loss come first, and nothing is assigned meanwhile
    elif group.members and beat.mode != _mode_beside(group, beat.client_id, beat.mode):
        detail = f"mode is {beat.mode!r}; expected {group.mode!r}, the mode of the group's oldest member"
        _turn_away(turn, beat, "mode", detail)
    elif member is None:
        _join(turn, beat)
    else:
        _wait(turn, beat, member)


def unregister(turn: Turn, event: Unregister) -> None:
    """Remove a client that leaves in good order; remember its instance: a late heartbeat must not bring it back."""
    group = turn.group
    if not may_end(event.instance_id, event.secret):
        detail = (
            f"the secret does not match instance_id {event.instance_id!r}; expected the secret that it was made from"
        )
        turn.say(Rejected(rule="secret", detail=detail, group_id=group.group_id, client_id=event.client_id))
        return
    member = group.members.get(event.client_id)
    if member is not None and member.instance_id == event.instance_id:
        _say(turn, event.client_id, member, "left")
        _remove(turn, event.client_id, "left", "unregistered")
        _go_on_without(turn, [(event.client_id, member)], "leave")
    elif _life(event.client_id, event.instance_id) not in group.ended:
        _remember(turn, event.client_id, event.instance_id, EndedInstance("left", 0, turn.moment.now_ms))


def expire(turn: Turn) -> None:
    """Remove the members that were silent for longer than their sessions; forget instances that ended long ago.

    An empty group is forgotten after `FORGET_MS`.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    judged_ms = turn.moment.judged_ms
    silent = [
        (client_id, member) for client_id, member in group.members.items() if judged_ms >= group.session_ends_ms(member)
    ]
    if silent and turn.moment.may_expire:
        for client_id, member in silent:
            _say(turn, client_id, member, "expired", f"no heartbeat for {now_ms - member.seen_ms} ms")
            _remove(turn, client_id, "expired", "expired")
        _go_on_without(turn, silent, "expire")
    while group.ended and now_ms >= next(iter(group.ended.values())).until_ms:
        del group.ended[next(iter(group.ended))]
    broadcast.forget(turn)
    if group.emptied_ms >= 0 and now_ms - group.emptied_ms >= FORGET_MS:
        _forget(turn)


def evict_deaf(turn: Turn, client_id: str, member: Member) -> None:
    """Evict a member whose heartbeats arrive and that does not receive its assignments: others need its queues."""
    since_ms = turn.moment.now_ms - member.unheard_since_ms
    detail = (
        f"deaf: its heartbeats show epoch {member.shown_epoch}; expected at least {member.unheard_epoch}, "
        f"which another member received {since_ms} ms ago"
    )
    _say(turn, client_id, member, "expired", detail)
    _remove(turn, client_id, "deaf", "expired")
    _go_on_without(turn, [(client_id, member)], "expire")


def _go_on_without(turn: Turn, gone: Iterable[tuple[str, Member]], trigger: Trigger) -> None:
    """Request a new target after members were removed, and let in the instances that waited for their client_ids."""
    group, now_ms = turn.group, turn.moment.now_ms
    turn.ask(trigger)
    for client_id, member in gone:
        rival = member.rival
        if rival is not None and now_ms - rival.seen_ms <= WAITING_MS:
            heartbeat(turn, rival.beat)
            if client_id in group.members:
                group.members[client_id].seen_ms = rival.seen_ms
    conflicts.review_all(turn)
    _note_if_empty(turn)


def _join(turn: Turn, beat: Heartbeat) -> None:
    group = turn.group
    size = admission.size_of(beat.subscriptions, beat.strategy_params)
    if full := admission.refusal(turn, beat, size):
        _turn_away(turn, beat, "limit", full)
        return
    if not group.members and beat.mode == "broadcasting":
        group.target = {}  # the target of a clustering group before it does not apply
    member = _member(turn, beat, size)
    topics = member.subscriptions.keys() - turn.topics
    turn.topics.update(topics)
    group.members[beat.client_id] = member
    group.mode_before = beat.mode
    group.bytes += member.bytes
    group.emptied_ms = -1
    topic_changes.review(turn, topics)
    group.remind(group.session_ends_ms(member))
    _say(turn, beat.client_id, member, "joined", ", ".join(sorted(member.subscriptions)))
    turn.ask("join")
    handover.take_claims(turn, beat, member)
    if group.is_broadcasting:
        broadcast.welcome(turn, beat.client_id, beat.owned)
    handover.note_claims(turn, beat, member)
    conflicts.review(turn, beat.client_id)


def _turn_away(turn: Turn, beat: Heartbeat, rule: str, detail: str, reason: FencedReason = "refused") -> None:
    """Reject the heartbeat of an instance that cannot become a member, and fence the instance."""
    turn.say(_refusal(beat, rule, detail))
    turn.say(_fenced(turn, beat.client_id, beat.instance_id, reason))
    if beat.owned:
        _wait_for_reader(turn, beat)


def _wait_for_reader(turn: Turn, beat: Heartbeat) -> None:
    """After a loss of state, assign unclaimed queues later: this instance may read some until it is fenced."""
    group = turn.group
    if group.loss is not None:
        group.loss = group.loss.while_read(turn.moment.now_ms, beat.session_timeout_ms)


def _wait(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Let an instance wait for the end of the live one; fence it as `duplicate` once that one proves to live on.

    A record may be late by a session. So a heartbeat of the live instance proves that it lived after the other instance
    appeared only if it arrives more than a session later. Each waiting instance has a time of its own: the live
    instance may have proved itself to an earlier one and have died since.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if beat.epoch >= 0 or beat.owned:
        # An instance that waits has received no assignment and owns nothing. This instance was a member before a loss
        # of state, and still reads.
        _stop_waiting(turn, beat, member)
        _end(turn, beat.client_id, beat.instance_id, "expired")
        _wait_for_reader(turn, beat)
        return
    session_ms = group.session_of(member) + 1
    since_ms = member.waiting.get(beat.instance_id, -1)
    if since_ms >= 0 and member.seen_ms > since_ms + session_ms:
        _stop_waiting(turn, beat, member)
        _end(turn, beat.client_id, beat.instance_id, "duplicate", by=member.instance_id)
        conflicts.note_duplicate(turn, beat.client_id, member, beat.instance_id)
        return
    size = admission.size_of(beat.subscriptions, beat.strategy_params)
    rival = Rival(structs.replace(beat, owned=[]), size, now_ms)  # it owns nothing, whatever its heartbeat claims
    if since_ms < 0:
        _note_waiting(member, beat.instance_id, now_ms, session_ms)
    if full := _let_wait(turn, member, rival):
        turn.say(_refusal(beat, "limit", full))
    elif since_ms < 0:
        detail = (
            f"client_id {beat.client_id!r} is in use by instance {member.instance_id!r}, whose last heartbeat came "
            f"{now_ms - member.seen_ms} ms ago; this instance joins when that one has left, or has sent no heartbeat "
            f"for {session_ms} ms"
        )
        turn.say(_refusal(beat, "in-use", detail))


def _note_waiting(member: Member, instance_id: str, now_ms: int, session_ms: int) -> None:
    """Remember since when an instance waits, if there is room; instances that came first are kept.

    If newcomers replaced those that came first, and more wait than are remembered, none would ever be answered. An
    instance that came more than two sessions ago and still is on the list has sent no heartbeat since: by that time the
    member has proved that it lives, or its session is over. Such an instance makes room.
    """
    waiting = member.waiting
    if len(waiting) >= MAX_RIVALS:
        first = min(waiting, key=waiting.__getitem__)
        if now_ms - waiting[first] <= 2 * session_ms + WAITING_MS:
            return
        del waiting[first]
    waiting[instance_id] = now_ms


def _stop_waiting(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Forget that an instance waits for the client_id of a member."""
    member.waiting.pop(beat.instance_id, None)
    if member.rival is not None and member.rival.beat.instance_id == beat.instance_id:
        _let_wait(turn, member, None)


def _let_wait(turn: Turn, member: Member, rival: Rival | None) -> str:
    """Replace a member's rival, or remove it; return why there is no room for the new one, empty if there is."""
    before = 0 if member.rival is None else member.rival.bytes
    more = (0 if rival is None else rival.bytes) - before
    if full := admission.no_room(turn, more):
        return full
    turn.group.bytes += more
    member.rival = rival
    return ""


def _mode_beside(group: Group, client_id: str, mode: Mode) -> Mode:
    """Return the mode that a client's new instance must have: that of the other members, its own if there are none."""
    return mode if group.members.keys() == {client_id} else group.mode


def _never_given(group: Group, beat: Heartbeat) -> str:
    return f"epoch is {beat.epoch}; expected at most {group.epoch}, the epoch of the group"


def _renew(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Update a member by its heartbeat; one with a lower epoch than it showed before only proves that it lives."""
    group = turn.group
    member.seen_ms = turn.moment.now_ms
    if beat.epoch < member.shown_epoch:
        return
    member.shown_epoch = beat.epoch
    if beat.epoch > group.heard_epoch:
        group.heard_epoch = beat.epoch
    if group.loss is not None:
        _trust(group, group.loss, beat, member)
    knows = beat.epoch >= member.sent_epoch >= 0 and beat.epoch > group.configured_epoch
    if knows and member.session_ms != group.settings.session_timeout_ms:
        member.session_ms = group.settings.session_timeout_ms
        group.remind(group.session_ends_ms(member))
    if beat.epoch < member.sent_epoch:
        if _is_deaf(turn, member):
            evict_deaf(turn, beat.client_id, member)
            return
    elif member.unheard_since_ms >= 0:
        member.unheard_since_ms = -1
    changed = _take_preferences(turn, beat, member)
    handover.take_receipt(turn, beat, member)
    handover.take_claims(turn, beat, member)
    if changed and group.is_broadcasting:
        broadcast.give(turn, beat.client_id)
    handover.tell_again(turn, beat, member)


def _is_deaf(turn: Turn, member: Member) -> bool:
    """Return whether a member has not shown its newest assignment although it could have received it for two sessions.

    Log time does not show when a decision was published. Another member's heartbeat does: if it shows an epoch,
    everything sent in that epoch or before is in the inbox. The two sessions begin there. They begin again whenever the
    member shows an assignment that it had missed.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if group.heard_epoch < member.sent_epoch:
        return False
    if member.unheard_since_ms < 0 or member.shown_epoch >= member.unheard_epoch:
        member.unheard_since_ms, member.unheard_epoch = now_ms, member.sent_epoch
    return now_ms - member.unheard_since_ms > DEAF_SESSIONS * group.session_of(member)


def _trust(group: Group, loss: Loss, beat: Heartbeat, member: Member) -> None:
    """Learn, after a loss of state, which session timeout a member trusts: the settings may be lost too."""
    if beat.session_timeout_ms > loss.session_ms:
        group.loss = Loss(loss.at_ms, beat.session_timeout_ms, loss.until_ms)
    member.session_ms = max(member.session_ms, beat.session_timeout_ms)


def _newer(known: Subscription | None, shown: Subscription) -> Subscription:
    """Return the subscription with the higher version; the known one if the versions are equal."""
    return shown if known is None or shown.version > known.version else known


_PREFERENCES = ("strategy", "strategy_params", "consume_from", "consume_from_ms", "orderly", "room", "weight")
_preferences = attrgetter(*_PREFERENCES)


def _take_preferences(turn: Turn, beat: Heartbeat, member: Member) -> bool:
    """Store the preferences of a member if they changed; return whether its topics changed."""
    if _preferences(member) == _preferences(beat) and list(member.subscriptions.values()) == beat.subscriptions:
        return False  # the case of almost every heartbeat
    group = turn.group
    wanted = {
        subscription.topic: _newer(member.subscriptions.get(subscription.topic), subscription)
        for subscription in beat.subscriptions
    }
    reworded = wanted != member.subscriptions
    rethought = [name for name in _PREFERENCES if getattr(member, name) != getattr(beat, name)]
    if not reworded and not rethought:
        return False
    more = admission.size_of(list(wanted.values()), beat.strategy_params) - member.bytes
    if full := admission.no_room(turn, more):
        turn.say(_refusal(beat, "limit", f"the member keeps its previous preferences: {full}"))
        return False
    group.bytes += more
    member.bytes += more
    changed = wanted.keys() != member.subscriptions.keys()
    if changed:
        _say(turn, beat.client_id, member, "resubscribed", _difference(member.subscriptions, wanted))
        turn.ask("subscription")
        topic_changes.review(turn, wanted.keys() - set(group.topics))
    left = member.subscriptions.keys() - wanted.keys()
    member.subscriptions = wanted
    topic_changes.note_left(turn, left)
    for name in rethought:
        setattr(member, name, getattr(beat, name))
    if rethought:
        group.stale = True
        group.remind(group.checked_ms + group.settings.rebalance_interval_ms)
    conflicts.review(turn, beat.client_id)
    return changed


def _member(turn: Turn, beat: Heartbeat, size: int) -> Member:
    member = Member(
        instance_id=beat.instance_id,
        seen_ms=turn.moment.now_ms,
        subscriptions={subscription.topic: subscription for subscription in beat.subscriptions},
        shown_epoch=beat.epoch,
        session_ms=SESSION_TIMEOUT_MS,
        bytes=size,
        mode=beat.mode,
        **{name: getattr(beat, name) for name in _PREFERENCES},
    )
    if turn.group.loss is not None:
        _trust(turn.group, turn.group.loss, beat, member)
    return member


def _remove(turn: Turn, client_id: str, reason: FencedReason, how: How) -> None:
    """Remove a member: fence its instance, free all its queues, and remember that the instance ended."""
    instance_id = turn.group.members[client_id].instance_id
    _end(turn, client_id, instance_id, reason)
    handover.free_all(turn, client_id, how)
    member = turn.group.members.pop(client_id)
    turn.group.bytes -= member.bytes + (0 if member.rival is None else member.rival.bytes)
    turn.group.conflicts.pop(client_id, None)  # the next instance may join in this turn, and conflict as well


def _end(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> None:
    """Fence an instance, and remember that it ended."""
    turn.say(_fenced(turn, client_id, instance_id, reason, by))
    _remember(turn, client_id, instance_id, EndedInstance(reason, 0, turn.moment.now_ms, by))


def _tell_ended(turn: Turn, beat: Heartbeat, ended: EndedInstance) -> None:
    """Fence an ended instance again, at most twice per heartbeat interval: it may have missed the first decision."""
    now_ms = turn.moment.now_ms
    if now_ms - ended.told_ms >= turn.group.settings.heartbeat_ms // 2:
        ended.told_ms = now_ms
        turn.say(_fenced(turn, beat.client_id, beat.instance_id, ended.reason, ended.by))
    _remember(turn, beat.client_id, beat.instance_id, ended)


def _remember(turn: Turn, client_id: str, instance_id: str, ended: EndedInstance) -> None:
    """Keep how an instance ended, for as long as a record of it may be late.

    While the group only learns from a log, it publishes nothing. So an instance may go on in spite of what is decided
    here, unless it left by itself.
    """
    if turn.group.is_learning and ended.reason != "left":
        return
    group, life = turn.group, _life(client_id, instance_id)
    group.ended.pop(life, None)
    while len(group.ended) >= turn.limits.max_ended:
        del group.ended[next(iter(group.ended))]
    ended.until_ms = turn.moment.now_ms + ENDED_MS
    group.ended[life] = ended
    group.remind(ended.until_ms)


def _life(client_id: str, instance_id: str) -> str:
    return f"{client_id} {instance_id}"  # no name contains a blank


def _forget(turn: Turn) -> None:
    """Forget everything of an empty group; the shard keeps its lowest epoch, so that no epoch is used twice."""
    group = turn.group
    lost = [f"offsets of {len(group.offsets)} queues"] if group.offsets else []
    lost += [f"offsets of {len(group.own_offsets)} clients"] if group.own_offsets else []
    lost += ["settings"] if group.settings != GroupSettings() else []
    detail = ", ".join(lost)
    turn.say(Membership(group_id=group.group_id, client_id="", change="forgotten", epoch=group.epoch, detail=detail))
    group.clear()


def _note_if_empty(turn: Turn) -> None:
    group = turn.group
    if not group.members:
        group.emptied_ms = turn.moment.now_ms
        group.remind(group.emptied_ms + FORGET_MS)
        turn.say(Membership(group_id=group.group_id, client_id="", change="emptied", epoch=group.epoch))


def _difference(before: dict[str, Subscription], after: dict[str, Subscription]) -> str:
    """Return which topics were added and removed: ``+payments -orders``."""
    added = [f"+{topic}" for topic in sorted(after.keys() - before.keys())]
    return " ".join(added + [f"-{topic}" for topic in sorted(before.keys() - after.keys())])


def _say(turn: Turn, client_id: str, member: Member, change: Change, detail: str = "") -> None:
    turn.note(client_id, member, change, assignment_limits.shortened(detail))


def _fenced(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> Fenced:
    return Fenced(group_id=turn.group.group_id, client_id=client_id, instance_id=instance_id, reason=reason, by=by)


def _refusal(beat: Heartbeat, rule: str, detail: str) -> Rejected:
    return Rejected(rule=rule, detail=detail, group_id=beat.group_id, client_id=beat.client_id)
