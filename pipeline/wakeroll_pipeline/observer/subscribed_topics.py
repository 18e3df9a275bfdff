"""Parsing of group events by the observer: which topics are subscribed or reset."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from wakeroll_model.config import MAX_QUEUES, MAX_TOPICS
from wakeroll_model.events import UNREADABLE
from wakeroll_model.queue import Queue, TopicName


class _Wanted(Struct):
    topic: TopicName


class Subscribed(Struct, tag_field="type", tag="heartbeat"):
    """A heartbeat, reduced to the topics that its client subscribes to."""

    subscriptions: Annotated[list[_Wanted], Meta(max_length=MAX_TOPICS)] = []


class _Offset(Struct):
    queue: Queue


class OffsetsSet(Struct, tag_field="type", tag="reset"):
    """A reset of offsets, reduced to its queues: nobody may subscribe to their topics yet."""

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
