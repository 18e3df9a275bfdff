"""Messages of Kafka's group coordinator for tests: an encoder, and strategies for all messages of a declaration."""

import base64
import struct
from typing import Any

from hypothesis import strategies as st

from wakeroll_model.coordinator_log.message_format import Message, Shape, shapes

_PACKED = {"int8": ">b", "int16": ">h", "uint16": ">H", "int32": ">i", "int64": ">q"}
_BITS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}


def encode(message: Message, version: int) -> bytes:
    """Return a message as Kafka writes it, behind its version."""
    return struct.pack(">h", version) + body(message, version, version >= message.FLEXIBLE)


def body(message: Message, version: int, flexible: bool) -> bytes:
    """Return a message, or a part of one, without its version."""
    there = [one for one in shapes(type(message)) if one.since.first <= version <= one.since.last]
    written = b"".join(
        _value(one, getattr(message, one.name), version, flexible) for one in there if one.tag is None or not flexible
    )
    if not flexible:
        return written
    tagged = {
        one.tag: _value(one, getattr(message, one.name), version, flexible)
        for one in there
        if one.tag is not None and getattr(message, one.name) != one.default
    }
    entries = [_varint(tag) + _varint(len(found)) + found for tag, found in sorted(tagged.items())]
    return written + _varint(len(tagged)) + b"".join(entries)


def _value(shape: Shape, value: Any, version: int, flexible: bool) -> bytes:
    kind = shape.kind
    if isinstance(kind, Shape):
        items = [] if value is None else [_value(kind, one, version, flexible) for one in value]
        return _length(None if value is None else len(items), 4, flexible) + b"".join(items)
    if kind == "uuid":
        return base64.urlsafe_b64decode(value + "==")
    if kind in ("string", "bytes"):
        found = value.encode() if isinstance(value, str) else value
        return _length(None if found is None else len(found), 2 if kind == "string" else 4, flexible) + (found or b"")
    if isinstance(kind, str):
        return struct.pack(_PACKED[kind], value)
    if shape.nullable and shape.tag is not None:
        return b"\x00" if value is None else b"\x01" + body(value, version, flexible)
    if shape.nullable:
        return b"\xff" if value is None else b"\x01" + body(value, version, flexible)
    return body(value, version, flexible)


def _length(length: int | None, size: int, flexible: bool) -> bytes:
    number = -1 if length is None else length
    return _varint(number + 1) if flexible else number.to_bytes(size, "big", signed=True)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def messages(message: type[Message], version: int) -> st.SearchStrategy[Any]:
    """Return the strategy of all messages that a version can hold."""
    flexible = version >= message.FLEXIBLE
    return _messages(message, version, flexible)


def _messages(message: type[Message], version: int, flexible: bool) -> st.SearchStrategy[Any]:
    there = {
        one.name: _values(one, version, flexible)
        for one in shapes(message)
        if one.since.first <= version <= one.since.last and (one.tag is None or flexible)
    }
    return st.builds(message, **there)


def _values(shape: Shape, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    kind = shape.kind
    if isinstance(kind, Shape):
        found = st.lists(_values(kind, version, flexible), max_size=3)
    elif kind == "uuid":
        found = st.binary(min_size=16, max_size=16).map(lambda one: base64.urlsafe_b64encode(one)[:22].decode())
    elif kind == "string":
        found = st.text(max_size=8)
    elif kind == "bytes":
        found = st.binary(max_size=8)
    elif kind == "uint16":
        found = st.integers(0, 2**16 - 1)
    elif isinstance(kind, str):
        found = st.integers(-(2 ** _BITS[kind]), 2 ** _BITS[kind] - 1)
    else:
        found = _messages(kind, version, flexible)
    return st.none() | found if shape.nullable else found
