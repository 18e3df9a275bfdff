"""The bytes of a signature at the end of a record's value, and its MAC. `docs/protocol.md` defines them.

A signature is ``,"signed":"<key id>:<signer>:<count>:<until>:<mac>"}``: one more field of the JSON object, so no header
is needed and the archived value contains it.
"""

import hmac
import re

from msgspec import Struct

_SUFFIX = re.compile(
    rb',"signed":"([A-Za-z0-9_-]{1,32}):([0-9a-f]{16}):([1-9][0-9]{0,15}):([1-9][0-9]{0,18}):([0-9a-f]{32})"}\Z'
)
_LONGEST_SUFFIX = 160
_MAC_DIGITS = 32
"""Hex digits of the MAC: 128 bits of HMAC-SHA256."""
_NO_KEY = b"\xff\xff\xff\xff"


class Signature(Struct, frozen=True):
    """The signature at the end of a record's value; not verified yet."""

    key_id: str
    signer: str
    """Name of the counter: 16 random hex digits, one name per producer that keeps its records in order."""
    count: int
    """Number of the record, from 1; it grows with each record of the signer."""
    until: int
    """Offset in the record's partition from which on the signature is void."""
    mac: bytes
    signed: bytes
    """The part of the value that the MAC covers."""


def read_signature(value: bytes) -> Signature | None:
    """Return the signature at the end of a value; None if there is none."""
    found = _SUFFIX.search(value, max(len(value) - _LONGEST_SUFFIX, 0))
    if found is None:
        return None
    key_id, signer, count, until, mac = found.groups()
    return Signature(key_id.decode(), signer.decode(), int(count), int(until), mac, value[: found.start(5)])


def unsigned_end(key_id: str, signer: str, count: int, until: int) -> bytes:
    """Return what follows the last field of a value, up to the MAC."""
    return f',"signed":"{key_id}:{signer}:{count}:{until}:'.encode()


def mac_of(secret: bytes, topic: str, partition: str, record_key: bytes | None, signed: bytes) -> bytes:
    """Return the MAC's hex digits; the length before each part makes the bytes of any two records different.

    Args:
        secret: the key's secret.
        topic: the topic of the record.
        partition: the partition of the record in decimal digits; empty if the signature counts for all.
        record_key: the key of the record.
        signed: the value up to the MAC.
    """
    parts = [
        _with_length(topic.encode()),
        _with_length(partition.encode()),
        _NO_KEY if record_key is None else _with_length(record_key),
        _with_length(signed),
    ]
    return hmac.digest(secret, b"".join(parts), "sha256").hex()[:_MAC_DIGITS].encode()


def is_mac(found: bytes, expected: bytes) -> bool:
    """Return whether two MACs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(found, expected)


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
