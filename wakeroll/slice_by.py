"""The key by which a message belongs to a slice: its own key, a header, or the result of the application's function."""

from collections.abc import Callable
from typing import Annotated, NamedTuple

from confluent_kafka import Message
from msgspec import Meta

from wakeroll.argument_checks import checked
from wakeroll.errors import InvalidUsage
from wakeroll.headers import pairs_of
from wakeroll_model.slices import key_of_offset

SliceBy = str | Callable[[Message], str | bytes | None]
"""Name of a header, or a function that returns the ordering key of a message; None: the message's own key."""

_Name = Annotated[str, Meta(pattern=r"\A[ -~]{1,200}\Z")]


class SliceKey(NamedTuple):
    """The key by which messages are ordered within slices."""

    told: str
    """Name of this key in heartbeats; it must be the same for all members."""
    key_of: Callable[[Message], bytes]
    """Returns the key of a message."""


def slice_key(slice_by: SliceBy | None) -> SliceKey:
    """Return the key that an application chooses; None: the key of the message.

    Raises:
        InvalidUsage: it is neither the name of a header nor a function with a name.
    """
    if slice_by is None:
        return SliceKey("", key_of)
    if isinstance(slice_by, str):
        name = str(checked("slice_by", slice_by, _Name))
        return SliceKey(f"header:{name}", lambda message: _header_of(message, name))
    name = getattr(slice_by, "__qualname__", "")
    if not callable(slice_by) or not name or "<lambda>" in name:
        raise InvalidUsage(
            f"slice_by is {slice_by!r}; it must be the name of a header, or a function that has a name, by which the "
            "members of the group compare what they cut partitions by"
        )
    checked("the name of slice_by", name, _Name)
    call = slice_by
    return SliceKey(f"function:{name}", lambda message: _bytes_of(call(message), message, name))


def key_of(message: Message) -> bytes:
    """Return the key of a message; its offset if it has none."""
    key = message.key()
    return key_of_offset(message.offset() or 0) if key is None else key.encode() if isinstance(key, str) else key


def _header_of(message: Message, name: str) -> bytes:
    """Return the value of the last header with this name, like Kafka's `lastHeader`; the message's key if none."""
    value = next((value for header, value in reversed(pairs_of(message)) if header == name), None)
    return key_of(message) if value is None else value


def _bytes_of(found: object, message: Message, name: str) -> bytes:
    match found:
        case bytes():
            return found
        case str():
            return found.encode()
        case None:
            return key_of(message)
        case _:
            raise InvalidUsage(f"slice_by, {name}(), returned {found!r:.80}; it must return text, bytes or None")
