"""Fields of events and decisions that `wakeroll_pipeline.operators.ledger_rows` converts to columns.

Their declarations are looser than those in `model`: kinds and modes of later versions are accepted.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from wakeroll_model.decisions import Cause
from wakeroll_model.events import UNREADABLE
from wakeroll_model.queue import QueueId, Slice, Slices

_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class _Cause(Cause, frozen=True):
    partition: _Int64
    offset: _Int64


class Header(Struct):
    """The fields of every decision that are columns."""

    kind: str
    shard: str
    seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    at_ms: _Int64
    cause: _Cause
    group_id: str | None = None
    client_id: str | None = None


class _Queue(Struct):
    topic: str
    broker: str
    queue_id: QueueId
    slices: Slices = 1
    slice: Slice = 0


class HandoverFields(Struct):
    """The fields of a hand-over that are columns of `assignments`."""

    group_id: str
    queue: _Queue
    epoch: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    how: str
    from_: str | None = msgspec.field(name="from", default=None)
    to: str | None = None
    released_ms: _Int64 | None = None
    assigned_ms: _Int64 | None = None


class OffsetFields(Struct):
    """The fields of a committed offset that are columns of `offsets`."""

    group_id: str
    queue: _Queue
    client_id: str
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    epoch: Annotated[int, Meta(ge=-1, le=2**63 - 1)]
    reset_by: str | None = None
    mode: str | None = None
    """None in decisions from before the broadcasting mode existed."""
    deleted: bool | None = None


class _Typed(Struct):
    type: Raw = Raw()


_Parsed = TypeVar("_Parsed")

decode_header = msgspec.json.Decoder(Header)
decode_handover = msgspec.json.Decoder(HandoverFields)
decode_offset = msgspec.json.Decoder(OffsetFields)
_decode_typed = msgspec.json.Decoder(_Typed)
_decode_text = msgspec.json.Decoder(str)


def parsed(decoder: msgspec.json.Decoder[_Parsed], value: bytes | None) -> _Parsed | None:
    """Return the fields of a record's value; None if it lacks one, exceeds the bounds of a column, or is not JSON."""
    try:
        return decoder.decode(value or b"")
    except UNREADABLE:
        return None


def text_of(value: bytes | None) -> str | None:
    """Return a record's value as text; None if it is not UTF-8."""
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return None


def type_of(value: bytes | None) -> str | None:
    """Return the field `type` of an event: its text, or its JSON if it is not text; None if there is none.

    >>> type_of(b'{"type": "tick"}'), type_of(b'{"type": [1]}'), type_of(b'{"type": null}'), type_of(b"nonsense")
    ('tick', '[1]', None, None)
    """
    try:
        found = bytes(_decode_typed.decode(value or b"").type)
        if found.startswith(b'"'):
            return _decode_text.decode(found)
        return None if found in (b"", b"null") else found.decode()
    except UNREADABLE:
        return None
