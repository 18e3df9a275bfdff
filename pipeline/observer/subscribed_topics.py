"""Parsing of group events by the observer: which topics are subscribed, and which were routed."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from model.config import MAX_TOPICS
from model.queue import TopicName
from model.records import UNREADABLE


class _Wanted(Struct):
    topic: TopicName


class Subscribed(Struct, tag_field="type", tag="heartbeat"):
    """A heartbeat, reduced to the topics that its client subscribes to."""

    subscriptions: Annotated[list[_Wanted], Meta(max_length=MAX_TOPICS)] = []


class Routed(Struct, tag_field="type", tag="route"):
    """A route, reduced to its topic and whether the topic has queues."""

    topic: TopicName
    queues: list[msgspec.Raw] = []


_decode = msgspec.json.Decoder(Subscribed | Routed).decode


def read(value: bytes | None) -> Subscribed | Routed | None:
    """Parse a record of the control topic; None for other kinds of events and for unreadable records."""
    try:
        said: Subscribed | Routed = _decode(value or b"")
    except UNREADABLE:
        return None
    return said
