"""Preferences: what a member's heartbeats request beside its queues, such as topics, strategy, room and weight."""

from operator import attrgetter

from msgspec import structs

from wakeroll_model import admission, assignment_limits, conflicts, differing_filters, patterns, topic_changes
from wakeroll_model.events import Filter, Heartbeat, Subscription
from wakeroll_model.group import Group, Member
from wakeroll_model.modes import SHARING
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined, sending

NAMES = (
    *("strategy", "strategy_params", "consume_from", "consume_from_ms", "orderly", "room", "weight"),
    *("pattern", "pattern_expression", "pattern_expression_type"),
)
"""Fields that a heartbeat and a member have in common, beside the subscriptions."""

_named = attrgetter(*NAMES)


def agreed(group: Group, beat: Heartbeat) -> Heartbeat:
    """Return a heartbeat with the strategy that counts for its member.

    If its application has not chosen one, that is the strategy of the running group: the oldest member's, or its own if
    it is the oldest. The first member of a group brings the default of its SDK. Afterwards the group keeps that
    strategy, even when the member has left.
    """
    if not beat.strategy_by_default or not group.members:
        return beat
    oldest = next(iter(group.members.values()))
    if (beat.strategy, beat.strategy_params) == (oldest.strategy, oldest.strategy_params):
        return beat
    return structs.replace(beat, strategy=oldest.strategy, strategy_params=oldest.strategy_params)


def store(turn: Turn, beat: Heartbeat, member: Member) -> Outcome:
    """Store the preferences of a member if they changed."""
    if are_stored(beat, member):
        return NOTHING  # the case of almost every heartbeat
    group = turn.group
    wanted = {
        subscription.topic: _newer(_named_before(member, subscription.topic), subscription)
        for subscription in beat.subscriptions
    }
    matched = patterns.matched_by(group, beat, member)
    wanted |= patterns.subscribed(matched, beat)
    reworded = wanted != member.subscriptions
    rethought = [name for name in NAMES if getattr(member, name) != getattr(beat, name)]
    if not reworded and not rethought:
        member.matched = matched
        return NOTHING
    more = admission.size_of(list(wanted.values()), beat.strategy_params, patterns.text_of(beat)) - member.bytes
    if full := admission.no_room(turn, more):
        turn.reject(beat, "limit", f"the member keeps its previous preferences: {full}")
        return NOTHING
    group.bytes += more
    member.bytes += more
    reviewed = NOTHING
    changed = wanted.keys() != member.subscriptions.keys() or "pattern" in rethought
    refiltered = turn.level >= 3 and _filters(wanted) != _filters(member.subscriptions)
    if changed:
        difference = _difference(member.subscriptions, wanted)
        if "pattern" in rethought:
            difference = f"{difference}; pattern {beat.pattern!r}, before {member.pattern!r}".removeprefix("; ")
            patterns.note_problem(turn, beat)
        detail = assignment_limits.shortened(difference)
        turn.note(beat.client_id, member, "resubscribed", detail, pattern=beat.pattern)
        reviewed = topic_changes.review(turn, wanted.keys() - set(group.topics))
    left = member.subscriptions.keys() - wanted.keys()
    member.subscriptions, member.matched = wanted, matched
    for name in rethought:
        setattr(member, name, getattr(beat, name))
    if rethought:
        group.stale = True
        group.remind(group.checked_ms + group.settings.rebalance_interval_ms)
    conflicts.review(turn, beat.client_id)
    sharing = SHARING[beat.mode]
    if (changed or refiltered) and turn.level >= 3 and beat.mode == "clustering" and group.loss is None:
        # It keeps messages for its former filters until an assignment answers this heartbeat.
        reviewed = combined(reviewed, sending(differing_filters.review(turn) | {beat.client_id}))
    if not changed:
        return combined(sharing.concerned("subscription"), reviewed) if refiltered else NOTHING
    return combined(sharing.concerned("subscription"), reviewed, sharing.resubscribe(turn, beat.client_id, left))


def are_stored(beat: Heartbeat, member: Member) -> bool:
    """Return whether a heartbeat has the stored preferences, in the same order."""
    if _named(member) != _named(beat):
        return False
    if not member.matched:
        return list(member.subscriptions.values()) == beat.subscriptions
    matched = frozenset(member.matched)
    return [one for topic, one in member.subscriptions.items() if topic not in matched] == beat.subscriptions


def _filters(subscriptions: dict[str, Subscription]) -> list[Filter]:
    return [differing_filters.filter_of(subscription) for _, subscription in sorted(subscriptions.items())]


def _named_before(member: Member, topic: str) -> Subscription | None:
    """Return the subscription of a topic that a member has named; None if it has not, or has it by its pattern only."""
    return None if topic in member.matched else member.subscriptions.get(topic)


def _newer(known: Subscription | None, shown: Subscription) -> Subscription:
    """Return the subscription with the higher version; the stored one if the versions are equal."""
    return shown if known is None or shown.version > known.version else known


def _difference(before: dict[str, Subscription], after: dict[str, Subscription]) -> str:
    """Return which topics were added and removed: ``+payments -orders``."""
    added = [f"+{topic}" for topic in sorted(after.keys() - before.keys())]
    return " ".join(added + [f"-{topic}" for topic in sorted(before.keys() - after.keys())])
