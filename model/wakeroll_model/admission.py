"""Admission: whether a shard has room for one more group, client, or larger heartbeat."""

from collections.abc import Collection, Mapping

import msgspec

from wakeroll_model.config import MEMBER_BYTES
from wakeroll_model.decisions import AnyDecision, Fenced, Rejected
from wakeroll_model.events import ON_EVERY_PARTITION, Event, Heartbeat, Subscription
from wakeroll_model.modes import SHARING
from wakeroll_model.turn import Turn

_encode = msgspec.json.Encoder().encode


def no_more_groups(turn: Turn, event: Event) -> list[AnyDecision]:
    """Reject an event of an unknown group if the shard has its maximum number of groups; else return nothing."""
    has_room = turn.load.entities < turn.limits.max_groups * turn.group.limit_times
    if has_room or not turn.group.is_blank or isinstance(event, ON_EVERY_PARTITION):
        return []
    group_id, client_id = turn.group.group_id, getattr(event, "client_id", None)
    detail = f"the shard has {turn.load.entities} groups; max_groups is {turn.limits.max_groups}"
    refused: list[AnyDecision] = [Rejected(rule="limit", detail=detail, group_id=group_id, client_id=client_id)]
    if isinstance(event, Heartbeat):
        fenced = Fenced(group_id=group_id, client_id=event.client_id, instance_id=event.instance_id, reason="refused")
        refused.append(fenced)
    return refused


def refusal(turn: Turn, beat: Heartbeat, topics: Collection[str], size: int) -> str:
    """Return why a client with these topics and a first heartbeat of this size cannot join; empty if it can."""
    group, most, times = turn.group, turn.group.settings.max_members, turn.group.limit_times
    if len(group.members) >= most * times:
        return f"the group has {len(group.members)} members; max_members is {most}"
    if full := no_room(turn, size, times):
        return full
    return SHARING[beat.mode].no_room(turn, topics)


def size_of(subscriptions: Collection[Subscription], strategy_params: Mapping[str, object], pattern: str = "") -> int:
    """Return the bytes that a group stores for a client: its preferences, and a fixed part."""
    return MEMBER_BYTES + len(_encode(subscriptions)) + len(_encode(strategy_params)) + len(pattern)


def no_room(turn: Turn, more: int, times: int = 1) -> str:
    """Return why a group cannot store so many more bytes of heartbeats and settings; empty if it can.

    `times`: factor of the limits.
    """
    group, limits = turn.group, turn.limits
    if more <= 0:
        return ""  # a lowered limit removes no member
    if group.bytes + more > limits.max_group_bytes * times:
        return (
            f"the group would have {group.bytes + more} bytes of heartbeats and settings; "
            f"max_group_bytes is {limits.max_group_bytes}"
        )
    of_all = turn.bytes_elsewhere + group.bytes + more
    if of_all > limits.max_shard_bytes * times:
        return (
            f"the shard would have {of_all} bytes of heartbeats and settings; "
            f"max_shard_bytes is {limits.max_shard_bytes}"
        )
    return ""
