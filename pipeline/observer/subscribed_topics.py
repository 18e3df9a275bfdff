"""What the log of group events says about topics: which are subscribed, and which were routed."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from model.config import MAX_TOPICS
from model.queue import TopicName
from model.records import UNREADABLE


class _Wanted(Struct):
    topic: TopicName


class Subscribed(Struct, tag_field="type", tag="heartbeat"):
    """A heartbeat, as far as it says what its client subscribes."""

    subscriptions: Annotated[list[_Wanted], Meta(max_length=MAX_TOPICS)] = []


class Routed(Struct, tag_field="type", tag="route"):
    """A route, as far as it says whether its topic exists."""

    topic: TopicName
    queues: list[msgspec.Raw] = []


_decode = msgspec.json.Decoder(Subscribed | Routed).decode


def read(value: bytes | None) -> Subscribed | Routed | None:
    """Read a record of the control topic; None for whatever is neither, be it no event at all."""
    try:
        said: Subscribed | Routed = _decode(value or b"")
    except UNREADABLE:
        return None
    return said
