"""Kafka's binary format of messages, read by the declarations of their fields.

A message is a struct whose annotations name the binary type of each field; its fields have the order of Kafka's schema.
`decode` returns the message, or raises `Damaged`. It raises no other error for any bytes, and uses no more memory than
a small multiple of their size.
"""

import base64
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import NODEFAULT, Struct, structs


class Damaged(ValueError):
    """Bytes that are not a message of the declared schema; the text names the place."""


class Binary(NamedTuple):
    """Annotation of a field: its binary type, by Kafka's name."""

    name: str


class Since(NamedTuple):
    """Annotation of a field: the versions of the message that have it."""

    first: int
    last: int = 2**15


class Tag(NamedTuple):
    """Annotation of a field that is optional in flexible versions: its number among the tagged fields."""

    number: int


Int8 = Annotated[int, Binary("int8")]
Int16 = Annotated[int, Binary("int16")]
UInt16 = Annotated[int, Binary("uint16")]
Int32 = Annotated[int, Binary("int32")]
Int64 = Annotated[int, Binary("int64")]
Text = Annotated[str, Binary("string")]
"""A text; bytes that are not UTF-8 are replaced."""
Uuid = Annotated[str, Binary("uuid")]
"""A UUID as Kafka prints it: 22 characters of base64."""
Bytes = Annotated[bytes, Binary("bytes")]


class Message(Struct, frozen=True, kw_only=True):
    """A message, or a part of one."""

    VERSIONS: ClassVar[range] = range(1)
    """The versions that can be read; not used for a part of a message."""
    FLEXIBLE: ClassVar[int] = 0
    """The first flexible version, with compact lengths and tagged fields; not used for a part of a message."""


INFLEXIBLE: Final = 2**15
"""`Message.FLEXIBLE` of a message without a flexible version."""

_SIZES: Mapping[str, tuple[int, bool]] = {
    "int8": (1, True),
    "int16": (2, True),
    "uint16": (2, False),
    "int32": (4, True),
    "int64": (8, True),
}
"""Binary type of an integer -> its size in bytes, and whether it is signed."""
_LONGEST_VARINT = 5
_UNION = type(int | None)
"""Type of the annotations of nullable fields."""

_Message = TypeVar("_Message", bound=Message)


class Cursor:
    """A position in bytes."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        """Number of bytes that are not read yet."""
        return len(self.data) - self.at

    def take(self, size: int) -> bytes:
        """Read some bytes.

        Raises:
            Damaged: there are fewer bytes.
        """
        begin, end = self.at, self.at + size
        if size < 0 or end > len(self.data):
            raise Damaged(f"{size} bytes are announced at byte {begin}; there are {self.left}")
        self.at = end
        return self.data[begin:end]

    def integer(self, size: int, *, signed: bool = True) -> int:
        """Read an integer of a fixed size in bytes.

        Raises:
            Damaged: the bytes end before.
        """
        return int.from_bytes(self.take(size), "big", signed=signed)

    def varint(self) -> int:
        """Read an unsigned integer of variable size.

        Raises:
            Damaged: the bytes end before, or it does not end within five bytes.
        """
        value = 0
        for place in range(_LONGEST_VARINT):
            byte = self.integer(1, signed=False)
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value
        raise Damaged(f"the length at byte {self.at - _LONGEST_VARINT} has more than {_LONGEST_VARINT} bytes")

    def length(self, size: int, *, compact: bool) -> int:
        """Read a length; -1 means null. A compact length is stored plus one; any other has `size` bytes.

        Raises:
            Damaged: the bytes end before, or the length is negative and not -1.
        """
        length = self.varint() - 1 if compact else self.integer(size)
        if length < -1:
            raise Damaged(f"the length before byte {self.at} is {length}")
        return length


Reader = Callable[[Cursor], Any]


class _Field(NamedTuple):
    """How a field of a message is read in one version."""

    name: str
    read: Reader


class _Plan(NamedTuple):
    """How a message is read in one version."""

    fields: tuple[_Field, ...]
    """The fields that are always present, in order."""
    tagged: Mapping[int, _Field]
    """Number -> an optional field."""
    flexible: bool


class Shape(NamedTuple):
    """The declaration of a field."""

    name: str
    kind: Any
    """Name of a binary type, `Shape` of the items of a list, or the `Message` of a part."""
    nullable: bool
    since: Since
    tag: int | None
    default: Any
    """`msgspec.NODEFAULT` if the field has none."""

    @property
    def is_list(self) -> bool:
        """Whether the field is a list of `kind`."""
        return isinstance(self.kind, Shape)


@cache
def shapes(message: type[Message]) -> tuple[Shape, ...]:
    """Return the declarations of a message's fields, in the order of its schema."""
    hints = get_type_hints(message, include_extras=True)
    return tuple(_shape(hints[field.name], field.name, field.default) for field in structs.fields(message))


def _shape(hint: Any, name: str, default: Any = NODEFAULT) -> Shape:
    notes: list[Any] = []
    nullable = False
    while True:
        if get_origin(hint) is Annotated:
            hint, *found = get_args(hint)
            notes += found
        elif get_origin(hint) in (Union, _UNION):
            [hint] = [one for one in get_args(hint) if one is not type(None)]
            nullable = True
        else:
            break
    since = next((note for note in notes if isinstance(note, Since)), Since(0))
    tag = next((note.number for note in notes if isinstance(note, Tag)), None)
    kind: Any = next((note.name for note in notes if isinstance(note, Binary)), hint)
    if get_origin(hint) is list:
        kind = _shape(get_args(hint)[0], name)
    return Shape(name, kind, nullable, since, tag, default)


@cache
def _plan(message: type[Message], version: int, flexible: bool) -> _Plan:
    there = [one for one in shapes(message) if one.since.first <= version <= one.since.last]
    read = {one.name: _Field(one.name, _reader(one, version, flexible)) for one in there}
    tagged = {one.tag: read[one.name] for one in there if one.tag is not None} if flexible else {}
    return _Plan(tuple(read[one.name] for one in there if one.tag is None), tagged, flexible)


def _reader(shape: Shape, version: int, flexible: bool) -> Reader:
    """Return the function that reads a field."""
    kind, nullable = shape.kind, shape.nullable
    if isinstance(kind, Shape):
        item = _reader(kind, version, flexible)
        return lambda cursor: _list(cursor, item, compact=flexible, nullable=nullable)
    if kind == "uuid":
        return _uuid
    if kind in ("string", "bytes"):
        size = 2 if kind == "string" else 4
        is_text = kind == "string"
        return lambda cursor: _blob(cursor, size, is_text=is_text, compact=flexible, nullable=nullable)
    if isinstance(kind, str):
        size, signed = _SIZES[kind]
        return lambda cursor: cursor.integer(size, signed=signed)
    if nullable and shape.tag is not None:  # a byte would be -1 for null, this is 0
        return lambda cursor: _fill(kind, cursor, version, flexible) if cursor.varint() else None
    if nullable:
        return lambda cursor: _fill(kind, cursor, version, flexible) if cursor.integer(1) >= 0 else None
    return lambda cursor: _fill(kind, cursor, version, flexible)


def _blob(cursor: Cursor, size: int, *, is_text: bool, compact: bool, nullable: bool) -> str | bytes | None:
    length = cursor.length(size, compact=compact)
    if length < 0:
        if not nullable:
            raise Damaged(f"a value before byte {cursor.at} is null")
        return None
    found = cursor.take(length)
    return found.decode(errors="replace") if is_text else found


def _list(cursor: Cursor, item: Reader, *, compact: bool, nullable: bool) -> list[Any] | None:
    length = cursor.length(4, compact=compact)
    if length < 0:
        if not nullable:
            raise Damaged(f"a list before byte {cursor.at} is null")
        return None
    if length > cursor.left:  # each item has at least one byte
        raise Damaged(f"{length} items are announced before byte {cursor.at}; there are {cursor.left} bytes")
    return [item(cursor) for _ in range(length)]


def _uuid(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(cursor.take(16))[:22].decode()


def _fill(message: type[_Message], cursor: Cursor, version: int, flexible: bool) -> _Message:
    plan = _plan(message, version, flexible)
    values = {name: read(cursor) for name, read in plan.fields}
    if flexible:
        for _ in range(cursor.varint()):
            number = cursor.varint()
            part = Cursor(cursor.take(cursor.varint()))
            field = plan.tagged.get(number)
            if field is not None:  # a later release adds tagged fields to a version; they are skipped
                values[field.name] = field.read(part)
    return message(**values)


def decode(message: type[_Message], data: bytes, version: int, at: int = 0) -> _Message:
    """Read a message that begins at a byte; ignore the bytes after it, as Kafka does.

    Args:
        message: its declaration.
        data: the bytes.
        version: one of its `VERSIONS`.
        at: number of the first byte of the message.

    Raises:
        Damaged: the bytes are not such a message.
    """
    return _fill(message, Cursor(data, at), version, version >= message.FLEXIBLE)
