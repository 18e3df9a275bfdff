"""Parsing of group events by the observer, for the topics that are subscribed or reset."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, ValidationError, convert

from wakeroll_model.config import MAX_PATTERN, MAX_QUEUES, MAX_TOPICS
from wakeroll_model.events import UNREADABLE
from wakeroll_model.queue import GroupId, Queue, TopicName

_Pattern = Annotated[str, Meta(max_length=MAX_PATTERN)]


class _Wanted(Struct):
    topic: TopicName


class Subscribed(Struct, tag_field="type", tag="heartbeat"):
    """A heartbeat, reduced to the subscriptions of its client."""

    group_id: Any = None
    pattern: Any = None
    subscriptions: Annotated[list[_Wanted], Meta(max_length=MAX_TOPICS)] = []

    @property
    def by_pattern(self) -> tuple[str, str] | None:
        """The group and the pattern; None without a pattern, or if one of them is not valid."""
        if not self.pattern:
            return None
        try:
            return convert((self.group_id, self.pattern), tuple[GroupId, _Pattern])
        except ValidationError:
            return None


class _Offset(Struct):
    queue: Queue


class OffsetsSet(Struct, tag_field="type", tag="reset"):
    """A reset of offsets, reduced to its queues, whose topics may have no subscribers yet."""

    offsets: Annotated[list[_Offset], Meta(max_length=MAX_QUEUES)] = []


GroupRecord = Subscribed | OffsetsSet
_decode = msgspec.json.Decoder(GroupRecord).decode


def read(value: bytes | None) -> GroupRecord | None:
    """Parse a record of the control topic; None for other kinds of events and for unreadable records."""
    try:
        record: GroupRecord = _decode(value or b"")
    except UNREADABLE:
        return None
    return record
