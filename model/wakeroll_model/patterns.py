"""Patterns: a member subscribes all topics whose names match a regular expression, also those that are created later.

An observer, which queries the topics of the cluster, evaluates the expression and appends the matching topics to the
log of the group (`Matches`). In Kafka, the coordinator evaluates it (KIP-848). So all members and all coordinators
agree on them, and no expression is evaluated here. A topic that matches is subscribed as if the member had named it,
with the filter of the member's pattern.
"""

from collections.abc import Collection, Iterable

from wakeroll_model import admission, assignment_limits, conflicts, topic_changes
from wakeroll_model.config import MAX_TOPICS, UNUSED_PATTERNS
from wakeroll_model.decisions import Membership, Rejected, Trigger
from wakeroll_model.events import Heartbeat, Matches, Subscription
from wakeroll_model.group import Group, Matched, Member
from wakeroll_model.turn import NOTHING, Outcome, Turn, combined

RULE = "pattern"
"""Rule of the rejection of a pattern that cannot be evaluated, or that matches too many topics."""
SHOWN = 5
"""Maximum number of topics that a sentence names."""


def matched_by(group: Group, beat: Heartbeat, member: Member | None = None) -> list[str]:
    """Return the topics that a heartbeat subscribes by its pattern only, sorted.

    Until an observer has evaluated a pattern, a member keeps the topics of its former pattern; after a loss of state,
    the topics of the queues that it claims.
    """
    if not beat.pattern:
        return []
    before = [] if member is None else member.matched
    if member is None and group.loss is not None:
        before = sorted({queue.topic for queue in beat.owned})[:MAX_TOPICS]
    known = group.matches.get(beat.pattern)
    return without(before if known is None else known.topics, {one.topic for one in beat.subscriptions})


def without(matched: Iterable[str], named: Collection[str]) -> list[str]:
    """Return the topics that a member has only by its pattern; topics that it names have their own filters."""
    return [topic for topic in matched if topic not in named]


def subscribed(matched: Iterable[str], by: Heartbeat | Member) -> dict[str, Subscription]:
    """Return the subscriptions of the topics that a member has by its pattern only, with the filter of the pattern."""
    expression, expression_type = by.pattern_expression, by.pattern_expression_type
    return {
        topic: Subscription(topic=topic, expression=expression, expression_type=expression_type) for topic in matched
    }


def text_of(by: Heartbeat | Member) -> str:
    """Return the text that a group stores of a pattern, for its size: the expression, and its filter if it has one."""
    return by.pattern if by.pattern_expression == "*" else by.pattern + by.pattern_expression


def note_problem(turn: Turn, beat: Heartbeat) -> None:
    """Reject a heartbeat with a new pattern if the pattern is not valid."""
    known = turn.group.matches.get(beat.pattern) if beat.pattern else None
    if known is not None and known.problem:
        turn.reject(beat, RULE, known.problem)


def follow(turn: Turn, event: Matches) -> Outcome:
    """Let the members with a pattern subscribe the topics that match it now."""
    group, before = turn.group, turn.group.matches.get(event.pattern)
    users = [client_id for client_id, member in group.members.items() if member.pattern == event.pattern]
    if before is None and not users:
        return NOTHING
    now = Matched(_topics(turn, event, before), event.problem)
    if now == before:
        return NOTHING
    changed = {client_id: _subscriptions(group.members[client_id], now.topics) for client_id in users}
    sizes = {
        client_id: admission.size_of(
            list(wanted.values()), group.members[client_id].strategy_params, text_of(group.members[client_id])
        )
        for client_id, (wanted, _) in changed.items()
    }
    more = sum(sizes.values()) - sum(group.members[client_id].bytes for client_id in users)
    if full := admission.no_room(turn, more):
        detail = f"pattern {event.pattern!r} keeps its previous topics: {full}"
        turn.emit(Rejected(rule="limit", detail=assignment_limits.shortened(detail), group_id=group.group_id))
        return NOTHING
    group.bytes += more
    group.matches[event.pattern] = now
    _forget_unused(group)
    if now.problem and (before is None or now.problem != before.problem):
        for client_id in users:
            turn.emit(Rejected(rule=RULE, detail=now.problem, group_id=group.group_id, client_id=client_id))
    subscribed = set(group.topics)
    for client_id, (wanted, matched) in changed.items():
        member = group.members[client_id]
        member.subscriptions, member.matched, member.bytes = wanted, matched, sizes[client_id]
    return _subscribed(turn, event, before, now, subscribed) if users else NOTHING


def _subscribed(turn: Turn, event: Matches, before: Matched | None, now: Matched, subscribed: set[str]) -> Outcome:
    """Record the change of the topics of a pattern, and let the target follow it.

    `subscribed`: the topics of the group before.

    A deleted topic has lost its queues already, and a topic without queues adds none, so the target is only compared,
    as after a route. If other members subscribe one of the topics, a new target is requested, which compares their
    filters.
    """
    group = turn.group
    known = frozenset(() if before is None else before.topics)
    added, left = [topic for topic in now.topics if topic not in known], known.difference(now.topics)
    if before is not None and not added and not left:
        return NOTHING
    turn.emit(
        Membership(
            group_id=group.group_id,
            client_id="",
            change="matched",
            epoch=group.epoch,
            detail=assignment_limits.shortened(f"{_difference(added, sorted(left))} by pattern {event.pattern!r}"),
            pattern=event.pattern,
        )
    )
    if before is not None and turn.level >= 3:  # these did not exist when the members subscribed the pattern
        for topic in added:
            if topic not in subscribed:
                topic_changes.note_new(turn, topic)
    reviewed = topic_changes.review(turn, set(added) - subscribed)
    topic_changes.note_idle(turn)
    conflicts.review_all(turn)
    shared = subscribed.intersection(added) or left.intersection(group.topics)
    trigger: Trigger = "subscription" if shared and group.mode == "clustering" else "route"
    return combined(reviewed, Outcome(triggers=(trigger,)))


def _topics(turn: Turn, event: Matches, before: Matched | None) -> list[str]:
    """Return the topics of a pattern, sorted and bounded.

    Observers may list topics at different times, so a topic whose newest route has queues still exists.
    """
    kept = [] if before is None else before.topics
    listed = frozenset(event.topics)
    found = [topic for topic in kept if topic in listed or turn.routes.queues(topic)]
    found += sorted(listed.difference(found))
    return sorted(found[:MAX_TOPICS])


def _subscriptions(member: Member, topics: Collection[str]) -> tuple[dict[str, Subscription], list[str]]:
    """Return the subscriptions of a member whose pattern matches these topics, and those by the pattern alone."""
    own = frozenset(member.matched)
    named = {topic: one for topic, one in member.subscriptions.items() if topic not in own}
    matched = without(topics, named)
    return named | subscribed(matched, member), matched


def _forget_unused(group: Group) -> None:
    """Forget the patterns that no member has, except for the newest ones, which a member may use again."""
    used = {member.pattern for member in group.members.values()}
    unused = [pattern for pattern in group.matches if pattern not in used]
    for pattern in unused[: max(len(unused) - UNUSED_PATTERNS, 0)]:
        del group.matches[pattern]


def _difference(added: Collection[str], left: Collection[str]) -> str:
    """Return the topics that match newly and no longer: ``+payments -orders``; at most the first few of each."""
    parts = []
    for sign, topics in (("+", added), ("-", left)):
        parts += [f"{sign}{topic}" for topic in list(topics)[:SHOWN]]
        if len(topics) > SHOWN:
            parts.append(f"and {len(topics) - SHOWN} more")
    return " ".join(parts) or "no topic matches"
