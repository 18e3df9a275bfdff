"""A record of `__consumer_offsets`: its bytes become a key and a value, or the reason why it is skipped."""

from typing import Final, Literal, TypeVar

from msgspec import Struct

from wakeroll_model.coordinator_log.message_format import Cursor, Damaged, Message, decode
from wakeroll_model.coordinator_log.message_schemas import (
    RECORD_TYPES,
    ConsumerAssignment,
    ConsumerSubscription,
    KeyMessage,
)

TOPIC: Final = "__consumer_offsets"

Reason = Literal["no key", "type", "version", "damaged"]
"""Why a record is skipped: it has no key; its type is not known; the version of its value is not known; its bytes do
not have the declared form."""


class CoordinatorRecord(Struct, frozen=True):
    """A record that was read."""

    type: int
    """Type of the record, one of `RECORD_TYPES`."""
    key: KeyMessage
    value: Message | None
    """None if the record deletes what its key names."""


class Skipped(Struct, frozen=True):
    """A record that cannot be read."""

    reason: Reason
    detail: str
    """The found and the expected contents, in words."""


def read_record(key: bytes | None, value: bytes | None) -> CoordinatorRecord | Skipped:
    """Read a record; it never raises an error, whatever the bytes are."""
    if key is None:
        return Skipped("no key", "the record has no key")
    if not key:
        return Skipped("damaged", "the key is empty")
    try:
        number = Cursor(key).integer(2)
        known = RECORD_TYPES.get(number)
        if known is None:
            return Skipped("type", f"type {number} is not known; known are 0 to {max(RECORD_TYPES)}")
        its_key = decode(known.key, key, 0, at=2)
        if value is None:
            return CoordinatorRecord(number, its_key, None)
        version, versions = Cursor(value).integer(2), known.value.VERSIONS
        if version not in versions:
            detail = f"{known.name}: version {version} is not known; known are {versions[0]} to {versions[-1]}"
            return Skipped("version", detail)
        return CoordinatorRecord(number, its_key, decode(known.value, value, version, at=2))
    except Damaged as error:
        return Skipped("damaged", str(error))


def read_subscription(data: bytes) -> ConsumerSubscription | None:
    """Read the subscription of a classic consumer; None if the bytes are not one, as for another kind of client."""
    return _embedded(ConsumerSubscription, data)


def read_assignment(data: bytes) -> ConsumerAssignment | None:
    """Read the assignment of a classic consumer; None if the bytes are not one. Zero bytes are an empty assignment."""
    return _embedded(ConsumerAssignment, data) if data else ConsumerAssignment(assigned_partitions=[])


_Embedded = TypeVar("_Embedded", bound=Message)


def _embedded(message: type[_Embedded], data: bytes) -> _Embedded | None:
    try:
        version = Cursor(data).integer(2)
        return None if version < 0 else decode(message, data, min(version, message.VERSIONS[-1]), at=2)
    except Damaged:
        return None
