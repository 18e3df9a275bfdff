"""Conflicts: members whose settings differ from those of the oldest member, and processes with the same client_id.

From feature level 3 on, the oldest member has a conflict too if its strategy does not exist.

No conflict splits the group: subscriptions count for each member, and the oldest member's strategy for all. In RocketMQ
each of these conflicts loses messages, and is very hard to find (its #351, #7717, #667).
"""

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from wakeroll_model import config, slicing, strategies
from wakeroll_model.group import Member
from wakeroll_model.retry_topics import retry_topic_of
from wakeroll_model.turn import Turn

SHOWN = 5
"""Maximum number of topics that a sentence names."""


def review(turn: Turn, client_id: str) -> None:
    """Compare a member that joined or changed with the oldest one; report a new conflict or agreement."""
    group = turn.group
    oldest = next(iter(group.members))
    if oldest != group.oldest or client_id == oldest:
        review_all(turn)
    elif client_id in group.members:
        _compare(turn, client_id)


def review_all(turn: Turn) -> None:
    """Compare all members, after the oldest one left or changed, or the settings changed."""
    group = turn.group
    group.oldest = next(iter(group.members), "")
    for client_id in sorted(group.conflicts.keys() - group.members.keys()):
        del group.conflicts[client_id]
    for client_id in group.members:
        _compare(turn, client_id)


def note_duplicate(turn: Turn, client_id: str, member: Member, instance_id: str) -> None:
    """Report, at most once in `DUPLICATE_EVERY_MS`, that another process uses the client_id of a live member."""
    now_ms = turn.moment.now_ms
    if member.reported_ms < 0 or now_ms - member.reported_ms >= config.DUPLICATE_EVERY_MS:
        member.reported_ms = now_ms
        detail = f"duplicate id: instance {instance_id!r} uses the client_id of live instance {member.instance_id!r}"
        turn.note(client_id, member, "conflict", detail)


def _compare(turn: Turn, client_id: str) -> None:
    """Compare a member with the oldest one; report a new conflict or agreement."""
    group = turn.group
    member = group.members[client_id]
    found = _unknown_strategy(turn, member) if client_id == group.oldest else _differences(turn, member)
    detail = _joined(chain(found, _without_slices(turn, client_id, member)))
    if detail == group.conflicts.get(client_id, ""):
        return
    if detail:
        group.conflicts[client_id] = detail
        turn.note(client_id, member, "conflict", detail)
    else:
        del group.conflicts[client_id]
        turn.note(client_id, member, "agreed")


def _unknown_strategy(turn: Turn, oldest: Member) -> Iterator[str]:
    """Yield why no queue is assigned by the strategy of the oldest member, if this coordinator does not have it."""
    group = turn.group
    if turn.level >= 3 and group.mode == "clustering" and group.settings.strategy is None:
        try:
            strategies.find(oldest.strategy)
        except strategies.StrategyError as error:
            yield f"{error}; the group keeps its last target"


def _without_slices(turn: Turn, client_id: str, member: Member) -> Iterator[str]:
    """Yield why a member gets no slices, if it subscribes topics that are cut into slices."""
    group = turn.group
    topics = sorted(group.settings.slices.keys() & member.subscriptions.keys())
    if not topics or group.mode != "clustering" or client_id in slicing.knowing(group):
        return
    nothing = f"so it gets no queue of {_named('', topics[:SHOWN], len(topics))}"
    if member.slice_by is None:
        yield f"does not know slices, {nothing}"
    else:
        by, others = _sliced_by(member.slice_by), _sliced_by(slicing.slice_by(group) or "")
        yield f"slices by {by}, the group by {others}, {nothing}"


def _sliced_by(slice_by: str) -> str:
    """Describe the key by which a member cuts partitions."""
    kind, _, name = slice_by.partition(":")
    return f"the {kind} {name}" if name else "the key"


def _joined(differences: Iterable[str]) -> str:
    """Join differences, up to the longest detail."""
    detail = ""
    for difference in differences:
        detail += f"; {difference}" if detail else difference
        if len(detail) >= config.MAX_DETAIL:
            break
    return detail[: config.MAX_DETAIL]


def _differences(turn: Turn, member: Member) -> Iterator[str]:
    """Yield the differences between a member's settings and those of the oldest member, which the group uses.

    The cost grows with the member's own subscriptions.
    """
    group = turn.group
    oldest = group.members[group.oldest]
    mine, others = member.subscriptions, oldest.subscriptions
    if member.pattern != oldest.pattern:
        yield f"pattern {member.pattern!r} differs from {oldest.pattern!r} of {group.oldest}"
    common = sorted(topic for topic in mine if topic in others)
    # Only members that run a handler subscribe the retry topic, and each of them does so after it has joined.
    ignored = retry_topic_of(group.group_id) if turn.level >= 3 else None
    more = sorted(topic for topic in mine if topic not in others and topic != ignored)
    lacking = (topic for topic in turn.oldest_topics.of(others) if topic not in mine and topic != ignored)
    missing = len(others) - len(common) - (ignored in others and ignored not in mine)
    for sign, topics, count in (("+", more, len(more)), ("-", lacking, missing)):
        if count:
            yield f"topics differ from those of {group.oldest}: {_named(sign, topics, count)}"
    kept = (
        "; messages that only one of them wants are kept for it"
        if turn.level >= 3 and group.mode == "clustering"
        else ""
    )
    for topic in common:
        one, other = mine[topic], others[topic]
        if (one.expression, one.expression_type) != (other.expression, other.expression_type):
            yield (
                f"filter of {topic}, {one.expression_type} {one.expression!r}, differs from "
                f"{other.expression_type} {other.expression!r} of {group.oldest}{kept}"
            )
    if group.settings.strategy is None and member.strategy != oldest.strategy:
        yield f"strategy {member.strategy} differs from {oldest.strategy} of {group.oldest}"
    if member.orderly != oldest.orderly:
        words = {True: "in order", False: "in any order"}
        yield f"consumes {words[member.orderly]}, {group.oldest} {words[oldest.orderly]}"


def _named(sign: str, topics: Iterable[str], count: int) -> str:
    more = f" and {count - SHOWN} more" if count > SHOWN else ""
    return " ".join(f"{sign}{topic}" for topic in islice(topics, SHOWN)) + more
