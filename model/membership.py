"""Who is in a group: joining, leaving and expiring; and the lives of a client, of which one counts at a time."""

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
    """Let a client join, take note of what a member says, or answer an instance that is not the live one.

    - An instance that ended is told so again, whatever it shows: it never acts again.
    - An instance of a client_id that a live instance has waits until that one left or expired, as a static member does
      in Kafka's KIP-848 (UNRELEASED_INSTANCE_ID); it never replaces it.
    - An epoch above the group's was never given: its heartbeat proves nothing.
    - As long as members may live that were not heard since a loss of state, a newcomer waits.
    """
    group = turn.group
    member = group.members.get(beat.client_id)
    if member is not None and member.instance_id == beat.instance_id:
        if beat.epoch > group.epoch:
            turn.say(_refusal(beat, "epoch", _never_given(group, beat)))
        elif beat.mode != group.mode:
            turn.say(_refusal(beat, "mode", f"mode is {beat.mode!r}; it was {group.mode!r} when this instance joined"))
        else:
            _renew(turn, beat, member)
        return
    ended = group.ended.get(_life(beat.client_id, beat.instance_id))
    if ended is not None:
        _tell_ended(turn, beat, ended)
    elif beat.epoch > group.epoch:
        _turn_away(turn, beat, "epoch", _never_given(group, beat), "epoch")
    elif group.loss is not None and beat.epoch < 0 and not beat.owned:
        pass  # it waits: who was in before the loss comes first, and nothing is given meanwhile
    elif group.members and beat.mode != _mode_beside(group, beat.client_id, beat.mode):
        detail = f"mode is {beat.mode!r}; the group consumes by {group.mode!r}, as its oldest member does"
        _turn_away(turn, beat, "mode", detail)
    elif member is None:
        _join(turn, beat)
    else:
        _wait(turn, beat, member)


def unregister(turn: Turn, event: Unregister) -> None:
    """A client leaves in good order; its instance is remembered, so that a late heartbeat does not bring it back."""
    group = turn.group
    if not may_end(event.instance_id, event.secret):
        detail = f"only who has the secret of {event.instance_id} may end it; the secret given is another instance's"
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
    """Remove who was silent for more than the session timeout; forget what is long gone."""
    group, now_ms = turn.group, turn.moment.now_ms
    judged_ms = turn.moment.judged_ms
    silent = [
        (client_id, member) for client_id, member in group.members.items() if judged_ms >= group.session_ends_ms(member)
    ]
    if silent and turn.moment.may_expire:
        for client_id, member in silent:
            _say(turn, client_id, member, "expired", f"silent for {now_ms - member.seen_ms} ms")
            _remove(turn, client_id, "expired", "expired")
        _go_on_without(turn, silent, "expire")
    while group.ended and now_ms >= next(iter(group.ended.values())).until_ms:
        del group.ended[next(iter(group.ended))]
    broadcast.forget(turn)
    if group.emptied_ms >= 0 and now_ms - group.emptied_ms >= FORGET_MS:
        _forget(turn)


def evict_deaf(turn: Turn, client_id: str, member: Member) -> None:
    """Evict a member whose heartbeats arrive and who does not hear: others need its queues."""
    since_ms = turn.moment.now_ms - member.unheard_since_ms
    detail = (
        f"deaf: it shows epoch {member.shown_epoch} and was sent {member.sent_epoch}; others heard it {since_ms} ms ago"
    )
    _say(turn, client_id, member, "expired", detail)
    _remove(turn, client_id, "deaf", "expired")
    _go_on_without(turn, [(client_id, member)], "expire")


def _go_on_without(turn: Turn, gone: Iterable[tuple[str, Member]], trigger: Trigger) -> None:
    """Ask for a new target after members went, and let in who waited for their client_ids."""
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
        group.target = {}  # what a clustering group before it wanted is nobody's now
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
    """Reject the heartbeat of an instance that cannot be a member, and fence the instance."""
    turn.say(_refusal(beat, rule, detail))
    turn.say(_fenced(turn, beat.client_id, beat.instance_id, reason))
    if beat.owned:
        _wait_for_reader(turn, beat)


def _wait_for_reader(turn: Turn, beat: Heartbeat) -> None:
    """After a loss of state, assign unclaimed queues later: this instance reads some and may be fenced late."""
    group = turn.group
    if group.loss is not None:
        group.loss = group.loss.while_read(turn.moment.now_ms, beat.session_timeout_ms)


def _wait(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Let an instance wait for the end of the one that has its client_id; tell it when that one proves to live on.

    A record may be late by a session, so a heartbeat of the live instance proves that it lived after the other one came
    only if it arrives more than a session later.  That counts for each instance by itself: the live one may have proved
    it to another one, and have died since.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if beat.epoch >= 0 or beat.owned:
        # Who waits has heard nothing and holds nothing.  This one was a member before a loss of state, and reads on.
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
    rival = Rival(structs.replace(beat, owned=[]), size, now_ms)  # it owns nothing, whatever it claims
    if since_ms < 0:
        _note_waiting(member, beat.instance_id, now_ms, session_ms)
    if full := _let_wait(turn, member, rival):
        turn.say(_refusal(beat, "limit", full))
    elif since_ms < 0:
        detail = (
            f"client_id {beat.client_id!r} is in use by instance {member.instance_id}, heard "
            f"{now_ms - member.seen_ms} ms ago; this one joins when that has left, or was silent for {session_ms} ms"
        )
        turn.say(_refusal(beat, "in-use", detail))


def _note_waiting(member: Member, instance_id: str, now_ms: int, session_ms: int) -> None:
    """Remember since when an instance waits, if there is room: those who came first are told first.

    Were the first ones forgotten, none would be told where more wait than are remembered.  Who came two sessions ago
    and waits still was not heard since: the member has shown by then that it lives, or its session is over.
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
    """Keep another rival of a member, or none; return why there is no room for it, empty if there is."""
    before = 0 if member.rival is None else member.rival.bytes
    more = (0 if rival is None else rival.bytes) - before
    if full := admission.no_room(turn, more):
        return full
    turn.group.bytes += more
    member.rival = rival
    return ""


def _mode_beside(group: Group, client_id: str, mode: Mode) -> Mode:
    """Return how a client must consume: as the others do; what it does itself does not bind its next instance."""
    return mode if group.members.keys() == {client_id} else group.mode


def _never_given(group: Group, beat: Heartbeat) -> str:
    return f"epoch is {beat.epoch}; the group is at {group.epoch}, and no higher epoch was ever given"


def _renew(turn: Turn, beat: Heartbeat, member: Member) -> None:
    """Take note of a known instance's heartbeat; one with an epoch below what it showed already only proves life."""
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
    changed = _take_wishes(turn, beat, member)
    handover.take_receipt(turn, beat, member)
    handover.take_claims(turn, beat, member)
    if changed and group.is_broadcasting:
        broadcast.give(turn, beat.client_id)
    handover.tell_again(turn, beat, member)


def _is_deaf(turn: Turn, member: Member) -> bool:
    """Whether a member that shows an older epoch than was sent to it has had two sessions in which it could have heard.

    Log time does not say when a decision was published.  Another member's receipt does: what was sent in its epoch, or
    before, is in the inbox.  The time counts from there, and anew whenever it hears an assignment that it had missed.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if group.heard_epoch < member.sent_epoch:
        return False
    if member.unheard_since_ms < 0 or member.shown_epoch >= member.unheard_epoch:
        member.unheard_since_ms, member.unheard_epoch = now_ms, member.sent_epoch
    return now_ms - member.unheard_since_ms > DEAF_SESSIONS * group.session_of(member)


def _trust(group: Group, loss: Loss, beat: Heartbeat, member: Member) -> None:
    """Learn, after a loss of state, which session the members trust: the settings may be lost too."""
    if beat.session_timeout_ms > loss.session_ms:
        group.loss = Loss(loss.at_ms, beat.session_timeout_ms, loss.until_ms)
    member.session_ms = max(member.session_ms, beat.session_timeout_ms)


def _newer(known: Subscription | None, shown: Subscription) -> Subscription:
    """Take a subscription with a higher version; of an equal or lower one, what is known stays."""
    return shown if known is None or shown.version > known.version else known


_WISHES = ("strategy", "strategy_params", "consume_from", "consume_from_ms", "orderly", "room", "weight")
_wishes = attrgetter(*_WISHES)


def _take_wishes(turn: Turn, beat: Heartbeat, member: Member) -> bool:
    """Take what a member wants, if it wants something else than before; return whether its topics changed."""
    if _wishes(member) == _wishes(beat) and list(member.subscriptions.values()) == beat.subscriptions:
        return False  # as almost every heartbeat
    group = turn.group
    wanted = {
        subscription.topic: _newer(member.subscriptions.get(subscription.topic), subscription)
        for subscription in beat.subscriptions
    }
    reworded = wanted != member.subscriptions
    rethought = [name for name in _WISHES if getattr(member, name) != getattr(beat, name)]
    if not reworded and not rethought:
        return False
    more = admission.size_of(list(wanted.values()), beat.strategy_params) - member.bytes
    if full := admission.no_room(turn, more):
        turn.say(_refusal(beat, "limit", f"it keeps what it wanted before: {full}"))
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
        **{name: getattr(beat, name) for name in _WISHES},
    )
    if turn.group.loss is not None:
        _trust(turn.group, turn.group.loss, beat, member)
    return member


def _remove(turn: Turn, client_id: str, reason: FencedReason, how: How) -> None:
    """Let a member go: it is told, all that it held is free, and its instance never acts again."""
    instance_id = turn.group.members[client_id].instance_id
    _end(turn, client_id, instance_id, reason)
    handover.free_all(turn, client_id, how)
    member = turn.group.members.pop(client_id)
    turn.group.bytes -= member.bytes + (0 if member.rival is None else member.rival.bytes)
    turn.group.conflicts.pop(client_id, None)  # its next life may come in this turn, and be at odds as well


def _end(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> None:
    """Tell an instance that it is out, and remember that."""
    turn.say(_fenced(turn, client_id, instance_id, reason, by))
    _remember(turn, client_id, instance_id, EndedInstance(reason, 0, turn.moment.now_ms, by))


def _tell_ended(turn: Turn, beat: Heartbeat, ended: EndedInstance) -> None:
    """Tell an instance again that it is out, at most twice a heartbeat interval: the first telling may be lost."""
    now_ms = turn.moment.now_ms
    if now_ms - ended.told_ms >= turn.group.settings.heartbeat_ms // 2:
        ended.told_ms = now_ms
        turn.say(_fenced(turn, beat.client_id, beat.instance_id, ended.reason, ended.by))
    _remember(turn, beat.client_id, beat.instance_id, ended)


def _remember(turn: Turn, client_id: str, instance_id: str, ended: EndedInstance) -> None:
    """Keep how an instance ended, from now on for as long as a record of it may be late.

    As long as nothing is published, it may go on in spite of what is decided here, unless it left by itself.
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
    return f"{client_id} {instance_id}"  # no name has a blank in it


def _forget(turn: Turn) -> None:
    """Forget an empty group: nothing of it stays but that its epochs are not used again (the shard keeps a floor)."""
    group = turn.group
    lost = [f"offsets of {len(group.offsets)} queues"] if group.offsets else []
    lost += [f"offsets of {len(group.own_offsets)} clients"] if group.own_offsets else []
    lost += ["its settings"] if group.settings != GroupSettings() else []
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
    """Say which topics came and went: ``+payments -orders``."""
    added = [f"+{topic}" for topic in sorted(after.keys() - before.keys())]
    return " ".join(added + [f"-{topic}" for topic in sorted(before.keys() - after.keys())])


def _say(turn: Turn, client_id: str, member: Member, change: Change, detail: str = "") -> None:
    turn.note(client_id, member, change, assignment_limits.shortened(detail))


def _fenced(turn: Turn, client_id: str, instance_id: str, reason: FencedReason, by: str = "") -> Fenced:
    return Fenced(group_id=turn.group.group_id, client_id=client_id, instance_id=instance_id, reason=reason, by=by)


def _refusal(beat: Heartbeat, rule: str, detail: str) -> Rejected:
    return Rejected(rule=rule, detail=detail, group_id=beat.group_id, client_id=beat.client_id)
