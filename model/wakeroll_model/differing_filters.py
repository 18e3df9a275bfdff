"""Differing filters: members of a group have different filters of a topic, as during a rolling deployment.

Each member receives the filters of the others. It skips a message only if no filter of its topic matches. The committed
offset stays at the first message that matches only other members' filters, until one of them owns the queue or all have
left.
"""

from collections.abc import Iterable

import msgspec

from wakeroll_model import config
from wakeroll_model.decisions import OtherFilter
from wakeroll_model.events import Filter, Subscription
from wakeroll_model.group import Group, Member
from wakeroll_model.turn import NOBODY, Turn

_EVERYTHING: Filter = ("*", "TAG")
_encode = msgspec.json.Encoder().encode


def filter_of(subscription: Subscription) -> Filter:
    """Return the filter of a subscription."""
    return subscription.expression, subscription.expression_type


def review(turn: Turn) -> frozenset[str]:
    """Compare the filters of the members after they or their subscriptions changed.

    Returns:
        The members for which the filters of other members changed: they must be sent their assignment.
    """
    group = turn.group
    found = _differing(group.members.values()) if group.mode == "clustering" else {}
    if found == group.filters:
        return NOBODY
    topics = {topic for topic in found.keys() | group.filters.keys() if found.get(topic) != group.filters.get(topic)}
    group.filters = found
    return frozenset(
        client_id for client_id, member in group.members.items() if not topics.isdisjoint(member.subscriptions)
    )


def others(group: Group, member: Member) -> list[OtherFilter]:
    """Return the filters of other members for topics of a member, sorted, without its own; bounded in size."""
    found = [
        OtherFilter(topic, *one)
        for topic in sorted(group.filters.keys() & member.subscriptions.keys())
        for one in group.filters[topic]
        if one != filter_of(member.subscriptions[topic])
    ]
    is_small = len(member.owned) <= config.FEW_QUEUES and len(_encode(found)) <= config.MAX_OTHERS_BYTES
    return found if not found or is_small else [OtherFilter()]


def _differing(members: Iterable[Member]) -> dict[str, list[Filter]]:
    """Return topic -> the different filters of the members, sorted, if there are several."""
    first: dict[str, Filter] = {}
    several: dict[str, set[Filter]] = {}
    for member in members:
        for topic, subscription in member.subscriptions.items():
            one = filter_of(subscription)
            if first.setdefault(topic, one) != one:
                several.setdefault(topic, {first[topic]}).add(one)
    return {
        topic: sorted(filters)
        if len(filters) <= config.MAX_FILTERS
        else [_EVERYTHING, *sorted(filters)[: config.MAX_FILTERS - 1]]
        for topic, filters in sorted(several.items())
    }
