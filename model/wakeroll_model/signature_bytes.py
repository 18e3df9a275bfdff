"""The bytes of a signature at the end of a record's value, and its proof. `docs/protocol.md` defines them.

A signature is ``,"signed":"<key id>:<signer>:<count>:<until>:<proof>"}``: one more field of the JSON object, so no
header is needed and the archived value contains it. The proof is a MAC or an Ed25519 signature; the key decides which.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Protocol

from msgspec import Struct

from wakeroll_model import ed25519

PUBLIC_KEYS_LEVEL = 4
"""First feature level at which Ed25519 signatures are read; below it, they count as no signature, as in earlier
releases."""
_SUFFIX = re.compile(
    rb',"signed":"([A-Za-z0-9_-]{1,32}):([0-9a-f]{16}):([1-9][0-9]{0,15}):([1-9][0-9]{0,18}):'
    rb'([0-9a-f]{32}|[A-Za-z0-9_-]{85}[AQgw])"}\Z'  # one text for each 64 bytes: the last digit has two bits of them
)
_LONGEST_SUFFIX = 192
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
    """Offset in the record's partition at which the signature expires."""
    proof: bytes
    """32 hex digits of a MAC, or 86 digits of an Ed25519 signature in base64."""
    signed: bytes
    """The part of the value that the proof covers."""


class Signing(Protocol):
    """The part of a key that signs and verifies records."""

    @property
    def secret(self) -> bytes:
        """The secret of an HMAC, or the private key of Ed25519; empty if this process does not have it."""

    @property
    def public_key(self) -> bytes:
        """The public key of Ed25519; empty for an HMAC."""


def read_signature(value: bytes, level: int) -> Signature | None:
    """Return the signature at the end of a value, at a feature level; None if there is none."""
    found = _SUFFIX.search(value, max(len(value) - _LONGEST_SUFFIX, 0))
    if found is None:
        return None
    key_id, signer, count, until, proof = found.groups()
    if len(proof) != _MAC_DIGITS and level < PUBLIC_KEYS_LEVEL:
        return None
    return Signature(key_id.decode(), signer.decode(), int(count), int(until), proof, value[: found.start(5)])


def unsigned_end(key_id: str, signer: str, count: int, until: int) -> bytes:
    """Return the part of a signed value after its last field, up to the proof."""
    return f',"signed":"{key_id}:{signer}:{count}:{until}:'.encode()


def proof_of(key: Signing, text: bytes) -> bytes:
    """Return the proof of a text, for a signature, by a key that has its secret."""
    assert key.secret, "nobody signs with a key without its secret"
    if key.public_key:
        return urlsafe_b64encode(ed25519.sign(key.secret, text)).rstrip(b"=")
    import hmac  # here, because few clients sign

    return hmac.digest(key.secret, text, "sha256").hex()[:_MAC_DIGITS].encode()


def is_proof(key: Signing, found: bytes, text: bytes) -> bool:
    """Return whether a proof of a text is valid by a key, which must have its secret or a public key.

    The key decides how the proof is verified. The time for a MAC does not depend on the place of a difference.
    """
    if key.public_key:
        return len(found) != _MAC_DIGITS and ed25519.verifies(key.public_key, urlsafe_b64decode(found + b"=="), text)
    import hmac

    return hmac.compare_digest(found, proof_of(key, text))


def text_of(topic: str, partition: str, record_key: bytes | None, signed: bytes) -> bytes:
    """Return the bytes that a proof covers; a length before each part makes the bytes of any two records different.

    Args:
        topic: the topic of the record.
        partition: the partition of the record in decimal digits; empty if the signature is valid in all.
        record_key: the key of the record.
        signed: the value up to the proof.
    """
    parts = [
        _with_length(topic.encode()),
        _with_length(partition.encode()),
        _NO_KEY if record_key is None else _with_length(record_key),
        _with_length(signed),
    ]
    return b"".join(parts)


def _with_length(part: bytes) -> bytes:
    return len(part).to_bytes(4, "big") + part
