"""The members of a group: how they join, stay, leave and expire."""

from collections.abc import Iterable

from wakeroll_model import (
    admission,
    assignment_limits,
    broadcast_offsets,
    conflicts,
    deletions,
    instances,
    kicks,
    patterns,
    preferences,
    releases,
    rounds,
    slicing,
    topic_changes,
)
from wakeroll_model.config import LAGGING_SESSIONS, SESSION_TIMEOUT_MS, WAITING_MS
from wakeroll_model.decisions import Change, FencedReason, How, Membership, Rejected
from wakeroll_model.events import Heartbeat, Unregister
from wakeroll_model.group import EndedInstance, Group, Kicked, Loss, Member
from wakeroll_model.instance_secrets import may_end
from wakeroll_model.modes import SHARING, sharing_of
from wakeroll_model.strategies import pinned
from wakeroll_model.target import strategy_of
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined

REPORTED = "its heartbeats come from a process that watches its group; that process is silent, the client may live"
"""Detail of an expired member in a group with the strategy PINNED, whose members are reported by another process."""

# --- events ---


def heartbeat(turn: Turn, beat: Heartbeat) -> Outcome:
    """Process a heartbeat; the first of these cases that applies decides.

    - The live instance of its client_id is the member.
    - An instance that ended is fenced again, whatever its heartbeat shows. It never becomes a member again.
    - A client that an operator keeps out is turned away.
    - A heartbeat with an epoch above the group's is rejected, because no such assignment was ever sent.
    - After a loss of state, a new client waits as long as a member from before the loss may be alive without having
      sent a heartbeat.
    - If another live instance has the client_id, the new instance waits until the other one has left or expired.
    """
    group = turn.group
    member = group.members.get(beat.client_id)
    if member is not None and member.instance_id == beat.instance_id:
        if beat.epoch > group.epoch:
            return _reject_epoch(turn, beat)
        if beat.mode != group.mode:
            return _reject_mode(turn, beat)
        return _renew(turn, beat, member)
    if ended := instances.find_ended(group, beat.client_id, beat.instance_id):
        return instances.fence_again(turn, beat, ended)
    if group.kicks and (kicked := kicks.keeps_out(turn, beat.client_id, beat.instance_id)):
        return _turn_away_kicked(turn, beat, kicked)
    if beat.epoch > group.epoch:
        return _turn_away_epoch(turn, beat)
    if _is_newcomer_after_loss(group, beat):
        return NOTHING
    if _has_other_mode(group, beat):
        return _turn_away_mode(turn, beat)
    if member is None:
        return _join(turn, beat)
    return instances.wait(turn, beat, member)


def unregister(turn: Turn, event: Unregister) -> Outcome:
    """Remove a client that leaves by itself, or whose process has ended.

    Its instance is remembered, so that a late heartbeat does not make it a member again.
    """
    group = turn.group
    if not may_end(event.instance_id, event.secret):
        detail = (
            f"the secret does not match instance_id {event.instance_id!r}; expected the secret that it was made from"
        )
        turn.emit(Rejected(rule="secret", detail=detail, group_id=group.group_id, client_id=event.client_id))
        return NOTHING
    member = group.members.get(event.client_id)
    if member is not None and member.instance_id == event.instance_id:
        if event.died is None:
            _emit_change(turn, event.client_id, member, "left")
        else:
            _emit_change(turn, event.client_id, member, "died", event.died)
        concerned = sharing_of(group).concerned("leave")
        removed = _remove(turn, event.client_id, "left", "unregistered" if event.died is None else "died")
        return combined(removed, concerned, _go_on_without(turn, [(event.client_id, member)]))
    if instances.find_ended(group, event.client_id, event.instance_id) is None:
        ended = EndedInstance("left", 0, turn.moment.now_ms)
        instances.remember(turn, event.client_id, event.instance_id, ended)
    return NOTHING


def expire(turn: Turn) -> Outcome:
    """Remove the members that were silent for longer than their sessions; forget instances that ended long ago.

    An empty group is forgotten after `Turn.forget_ms`.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    judged_ms = turn.moment.judged_ms
    silent = [
        (client_id, member) for client_id, member in group.members.items() if judged_ms >= group.session_ends_ms(member)
    ]
    outcomes: list[Outcome] = []
    if silent and turn.moment.may_expire:
        outcomes.append(sharing_of(group).concerned("expire"))
        reported = REPORTED if strategy_of(group)[0] == pinned.NAME else ""
        for client_id, member in silent:
            details = [f"no heartbeat for {now_ms - member.seen_ms} ms", reported]
            if group.is_leaving(client_id):
                details.append(kicks.in_words(group.kicks[client_id], now_ms))
            _emit_change(turn, client_id, member, "expired", "; ".join(filter(None, details)))
            outcomes.append(_remove(turn, client_id, "expired", "expired"))
        outcomes.append(_go_on_without(turn, silent))
    kicks.forget(turn)
    while group.ended and now_ms >= next(iter(group.ended.values())).until_ms:
        del group.ended[next(iter(group.ended))]
    broadcast_offsets.forget_old(turn)
    if group.emptied_ms >= 0 and now_ms - group.emptied_ms >= turn.forget_ms and not group.kicks:
        deletions.forget(turn)
    return combined(*outcomes)


# --- cases of a heartbeat ---


def _reject_epoch(turn: Turn, beat: Heartbeat) -> Outcome:
    """Reject a heartbeat of a member that shows an epoch of no assignment."""
    turn.reject(beat, "epoch", _never_given(turn.group, beat))
    return NOTHING


def _reject_mode(turn: Turn, beat: Heartbeat) -> Outcome:
    """Reject a heartbeat of a member that changes its mode."""
    mode = turn.group.mode
    turn.reject(beat, "mode", f"mode is {beat.mode!r}; expected {mode!r}, as when this instance joined")
    return NOTHING


def _renew(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Update a member by its heartbeat; a lower epoch than before only proves that the member is alive."""
    group = turn.group
    member.seen_ms = turn.moment.now_ms
    if beat.epoch < member.shown_epoch:
        return NOTHING
    member.shown_epoch = beat.epoch
    if beat.epoch > group.received_epoch:
        group.received_epoch = beat.epoch
    if group.loss is not None:
        _trust(group, group.loss, beat, member)
    knows = beat.epoch >= member.sent_epoch >= 0 and beat.epoch > group.configured_epoch
    if knows and member.session_ms != group.settings.session_timeout_ms:
        member.session_ms = group.settings.session_timeout_ms
        group.remind(group.session_ends_ms(member))
    rounds.note(turn, beat, member)
    probed = NOTHING
    if beat.epoch < member.sent_epoch:
        if _is_lagging(turn, member):
            return _evict_lagging(turn, beat.client_id, member)
        probed = rounds.probe(turn, beat.client_id, member)
    elif member.lagging_since_ms >= 0 or member.lagging_round >= 0:
        member.lagging_since_ms = member.lagging_round = -1
    changed = preferences.store(turn, beat, member)
    target_stands = not (group.pending or changed.triggers)
    if beat.about is not None and beat.about != member.about:
        member.about = beat.about
        _emit_change(turn, beat.client_id, member, "described", beat.about.words)
    member.handling = beat.handling
    if beat.slice_by is not None and beat.slice_by != member.slice_by:
        changed = combined(changed, _slice_by(turn, beat, member))
        target_stands = not (group.pending or changed.triggers)
    received = SHARING[beat.mode].receive(turn, beat, member, target_stands=target_stands)
    return combined(changed, received, releases.repeat_assignment(beat, member), probed)


def _slice_by(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Note the key by which a member cuts partitions; with it, the member may get slices, or lose them."""
    before, member.slice_by = slicing.knowing(turn.group), beat.slice_by
    conflicts.review_all(turn)
    is_cut = not turn.group.settings.slices.keys().isdisjoint(turn.group.topics)
    differs = is_cut and slicing.knowing(turn.group) != before
    return SHARING[beat.mode].concerned("subscription") if differs else NOTHING


def _turn_away_epoch(turn: Turn, beat: Heartbeat) -> Outcome:
    """Turn away an instance that shows an epoch of no assignment."""
    return instances.turn_away(turn, beat, "epoch", _never_given(turn.group, beat), "epoch")


def _turn_away_kicked(turn: Turn, beat: Heartbeat, kicked: Kicked) -> Outcome:
    """Turn away an instance of a client that an operator keeps out."""
    detail = f"client_id {beat.client_id!r} was {kicks.in_words(kicked, turn.moment.now_ms)}"
    return instances.turn_away(turn, beat, kicks.OUT_RULE, detail, "kicked", kicked.by)


def _is_newcomer_after_loss(group: Group, beat: Heartbeat) -> bool:
    """Return whether a client must wait: members from before a loss join first, and nothing is assigned meanwhile."""
    return group.loss is not None and beat.epoch < 0 and not beat.owned


def _has_other_mode(group: Group, beat: Heartbeat) -> bool:
    """Return whether an instance has another mode than the present members."""
    return beat.mode != group.mode and not group.members.keys() <= {beat.client_id}


def _turn_away_mode(turn: Turn, beat: Heartbeat) -> Outcome:
    """Turn away an instance whose mode is not the group's."""
    mode = turn.group.mode
    detail = f"mode is {beat.mode!r}; expected {mode!r}, the mode of the group's oldest member"
    return instances.turn_away(turn, beat, "mode", detail)


def _join(turn: Turn, beat: Heartbeat) -> Outcome:
    """Let a client join, if there is room."""
    group = turn.group
    member = _member(turn, beat)
    if full := admission.refusal(turn, beat, member.subscriptions, member.bytes):
        return instances.turn_away(turn, beat, "limit", full)
    topics = member.subscriptions.keys() - turn.subscribed
    turn.subscribed.update(topics)
    group.members[beat.client_id] = member
    group.mode_before = beat.mode
    group.bytes += member.bytes
    group.emptied_ms = -1
    reviewed = topic_changes.review(turn, topics)
    group.remind(group.session_ends_ms(member))
    who = "" if beat.about is None else beat.about.words
    detail = ", ".join(sorted(member.subscriptions))
    if beat.pattern:
        detail = f"{detail}; pattern {beat.pattern!r}".removeprefix("; ")
        patterns.note_problem(turn, beat)
    detail = assignment_limits.shortened(f"{detail}; {who}" if who else detail)
    turn.note(beat.client_id, member, "joined", detail, pattern=beat.pattern)
    sharing = SHARING[beat.mode]
    joined = sharing.join(turn, beat, member)
    claimed = releases.note_claims(beat, member)
    conflicts.review(turn, beat.client_id)
    return combined(sharing.concerned("join"), reviewed, joined, claimed)


def _member(turn: Turn, beat: Heartbeat) -> Member:
    matched = patterns.matched_by(turn.group, beat)
    subscriptions = {subscription.topic: subscription for subscription in beat.subscriptions}
    subscriptions |= patterns.subscribed(matched, beat)
    member = Member(
        instance_id=beat.instance_id,
        seen_ms=turn.moment.now_ms,
        subscriptions=subscriptions,
        shown_epoch=beat.epoch,
        session_ms=SESSION_TIMEOUT_MS,
        bytes=admission.size_of(list(subscriptions.values()), beat.strategy_params, patterns.text_of(beat)),
        mode=beat.mode,
        joined_ms=turn.moment.at_ms,
        about=beat.about,
        handling=beat.handling,
        slice_by=beat.slice_by,
        matched=matched,
        **{name: getattr(beat, name) for name in preferences.NAMES},
    )
    if turn.group.loss is not None:
        _trust(turn.group, turn.group.loss, beat, member)
    return member


# --- what a heartbeat shows ---


def _is_lagging(turn: Turn, member: Member) -> bool:
    """Return whether a member has not shown its newest assignment although it could have received it for two sessions.

    Log time does not show when a decision was published. The rounds that other members show prove it. The two sessions
    begin with this proof. They begin again whenever the member shows an assignment that it had missed.

    Below level 3, another member's epoch counts as a proof. It proves too little: the assignment of this member may
    have been sent later in the same epoch.
    """
    group, now_ms = turn.group, turn.moment.now_ms
    if turn.level >= 3:
        return rounds.is_lagging(turn, member)
    if group.received_epoch < member.sent_epoch:
        return False
    if member.lagging_since_ms < 0 or member.shown_epoch >= member.lagging_epoch:
        member.lagging_since_ms, member.lagging_epoch = now_ms, member.sent_epoch
    return now_ms - member.lagging_since_ms > LAGGING_SESSIONS * group.session_of(member)


def _trust(group: Group, loss: Loss, beat: Heartbeat, member: Member) -> None:
    """After a loss of state, take the session timeout from a member's heartbeat: the settings may be lost too."""
    if beat.session_timeout_ms > loss.session_ms:
        group.loss = Loss(loss.at_ms, beat.session_timeout_ms, loss.until_ms)
    member.session_ms = max(member.session_ms, beat.session_timeout_ms)


def _never_given(group: Group, beat: Heartbeat) -> str:
    return f"epoch is {beat.epoch}; expected at most {group.epoch}, the epoch of the group"


# --- members that go ---


def _evict_lagging(turn: Turn, client_id: str, member: Member) -> Outcome:
    """Evict a member that sends heartbeats and does not receive its assignments, so that others get its queues."""
    since_ms = turn.moment.now_ms - member.lagging_since_ms
    detail = (
        f"deaf: its heartbeats show epoch {member.shown_epoch}; expected at least {member.lagging_epoch}, "
        f"which {_evidence(member)} {since_ms} ms ago"
    )
    _emit_change(turn, client_id, member, "expired", detail)
    concerned = sharing_of(turn.group).concerned("expire")
    removed = _remove(turn, client_id, "deaf", "expired")
    return combined(removed, concerned, _go_on_without(turn, [(client_id, member)]))


def _evidence(member: Member) -> str:
    """Return the proof that a member could have received its assignment, in words."""
    if member.lagging_round < 0:
        return "another member received"
    return f"was sent before round {member.lagging_round + 1}; others received later rounds"


def dismiss(turn: Turn) -> Outcome:
    """Remove the members that an operator kicked and that own no queue any more; in a broadcasting group, all of them.

    After a loss of state, a member may read queues that are not claimed yet, so it stays.
    """
    group = turn.group
    if group.loss is not None:
        return NOTHING
    gone: list[tuple[str, Member]] = []
    outcomes: list[Outcome] = []
    for client_id in [name for name in group.kicks if group.is_leaving(name)]:
        member = group.members[client_id]
        if member.owned and group.mode == "clustering":
            continue
        _emit_change(turn, client_id, member, "kicked", kicks.in_words(group.kicks[client_id], turn.moment.now_ms))
        concerned = sharing_of(group).concerned("leave")
        outcomes += [concerned, _remove(turn, client_id, "kicked", "removed")]
        gone.append((client_id, member))
    return combined(*outcomes, _go_on_without(turn, gone)) if gone else NOTHING


def _remove(turn: Turn, client_id: str, reason: FencedReason, how: How) -> Outcome:
    """Remove a member: fence its instance, free all its queues, and remember that the instance ended."""
    instance_id, by = turn.group.members[client_id].instance_id, ""
    if turn.group.is_leaving(client_id):
        if reason != "left":  # it must not come back by itself
            reason, by = "kicked", turn.group.kicks[client_id].by
        kicks.end(turn, client_id)
    instances.end(turn, client_id, instance_id, reason, by)
    freed = sharing_of(turn.group).leave(turn, client_id, how)
    member = turn.group.members.pop(client_id)
    turn.group.bytes -= member.bytes + (0 if member.rival is None else member.rival.bytes)
    turn.group.conflicts.pop(client_id, None)  # the next instance may join in this turn, and conflict as well
    return freed


def _go_on_without(turn: Turn, gone: Iterable[tuple[str, Member]]) -> Outcome:
    """Let the instances join that waited for the client_ids of removed members."""
    group, now_ms = turn.group, turn.moment.now_ms
    outcomes: list[Outcome] = []
    for client_id, member in gone:
        rival = member.rival
        if rival is not None and now_ms - rival.seen_ms <= WAITING_MS:
            outcomes.append(heartbeat(turn, rival.beat))
            if client_id in group.members:
                newcomer = group.members[client_id]
                newcomer.seen_ms = rival.seen_ms
                if turn.level >= 3:  # its session may end before all others
                    group.remind(group.session_ends_ms(newcomer))
    conflicts.review_all(turn)
    _note_if_empty(turn)
    return combined(*outcomes)


def _note_if_empty(turn: Turn) -> None:
    group = turn.group
    if not group.members:
        group.emptied_ms = turn.moment.now_ms
        group.remind(group.emptied_ms + turn.forget_ms)
        turn.emit(Membership(group_id=group.group_id, client_id="", change="emptied", epoch=group.epoch))


def _emit_change(turn: Turn, client_id: str, member: Member, change: Change, detail: str = "") -> None:
    turn.note(client_id, member, change, assignment_limits.shortened(detail))
