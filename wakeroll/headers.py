"""What a message says of itself, as its headers: its tag and its properties, by which subscriptions choose."""

import reprlib
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from confluent_kafka import Message

from model.events import Arrival
from model.filters import ParsedSubscription, matches, tags_code
from model.filters.matching import TAGS_PROPERTY
from wakeroll.errors import InvalidUsage

TAGS_HEADER = TAGS_PROPERTY
"""The header of the tag has the name that the tag has among RocketMQ's properties."""

_DECLARED = {field.name: field.type for field in msgspec.structs.fields(Arrival)}


def headers_of(tags: str, properties: Mapping[str, str]) -> list[tuple[str, bytes]]:
    """Return a message's headers: the tag, unless it is empty, then the properties.

    Raises:
        InvalidUsage: something is no text, too long, or more than an arrival may tell.
    """
    if not isinstance(tags, str):
        raise InvalidUsage(f"tags is {reprlib.repr(tags)}; it must be text, empty for none")
    _check("tags", tags, _DECLARED["tags"])
    if not isinstance(properties, Mapping):
        raise InvalidUsage(f"properties is {reprlib.repr(properties)}; it must map names to texts")
    for name, text in properties.items():
        if name in ("", TAGS_HEADER):
            raise InvalidUsage(f"a property is named {name!r}; it must have a name, and tags= takes the tag")
        _check(f"property {name!r:.80}", {name: text}, _DECLARED["properties"])
    _check("properties", dict(properties), _DECLARED["properties"])
    texts = {TAGS_HEADER: tags, **properties} if tags else properties
    try:
        for text in texts:
            text.encode()
        return [(name, text.encode()) for name, text in texts.items()]
    except UnicodeEncodeError as error:
        raise InvalidUsage(f"{reprlib.repr(error.object)} is no text that UTF-8 can carry: {error.reason}") from None


def wants(subscription: ParsedSubscription, message: Message) -> bool:
    """Whether a subscription wants a message, by its headers.

    They are all that is known, and all there is: a message without a tag is none of a subscription to tags.  What is
    not UTF-8 was written for others; of two headers with one name the later counts, as in Kafka's `lastHeader`.
    """
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])  # of a message that was read
    properties = {name: text for name, value in headers if (text := _text_of(value)) is not None}
    tags = properties.get(TAGS_HEADER, "")
    return matches(subscription, tags_code(tags), tags, properties)


def _text_of(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _check(name: str, value: object, declared: Any) -> None:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError as error:
        sentence = str(error).partition(" - at ")[0]
        raise InvalidUsage(f"{name} is {reprlib.repr(value)}: {sentence[:1].lower()}{sentence[1:]}") from None
