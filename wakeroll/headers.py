"""What a message says of itself, as its headers: its tag and its properties, by which subscriptions choose."""

import reprlib
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

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
    not UTF-8 was written for others.
    """
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])  # of a message that was read
    properties = {name: text for name, text in texts_of(headers).items() if text is not None}
    tags = properties.get(TAGS_HEADER, "")
    return matches(subscription, tags_code(tags), tags, properties)


def texts_of(headers: Iterable[tuple[str, bytes | None]]) -> dict[str, str | None]:
    """Return what headers say, by name; None is no text.

    Of those with one name the last counts, as Kafka's `lastHeader` has it; one without a value says nothing.
    """
    return {name: _text_of(value) for name, value in dict(headers).items() if value is not None}


def fits(name: Literal["tags", "properties"], value: object) -> bool:
    """Whether an arrival may tell these tags, or these properties, of its message."""
    try:
        msgspec.convert(value, _DECLARED[name])
    except msgspec.ValidationError:
        return False
    return True


def _text_of(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _check(name: str, value: object, declared: Any) -> None:
    try:
        msgspec.convert(value, declared)
    except msgspec.ValidationError as error:
        sentence = str(error).partition(" - at ")[0]
        raise InvalidUsage(f"{name} is {reprlib.repr(value)}: {sentence[:1].lower()}{sentence[1:]}") from None
