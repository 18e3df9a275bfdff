"""Keys of clients: events of a group that a key covers take effect only if they are signed with such a key.

So clients that do not trust each other can share the control topics. A group that no key covers needs no signatures.
Copies of signed records are not detected here. An event of a client names its instance and its epoch, so the machines
recognize an outdated copy; and only trusted roles may read the control topics, from which copies could be made.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

from wakeroll_model.events import AnyEvent, Cancel, Commit, Event, Failures, Heartbeat, Lock, Pull, Unlock, Unregister
from wakeroll_model.signature_bytes import is_proof, proof_of, read_signature, text_of, unsigned_end

if TYPE_CHECKING:
    from wakeroll_model.records import Record

ROLE = "client"
"""The role of these keys in a key file."""

FROM_CLIENTS: frozenset[type[Event]] = frozenset({Heartbeat, Unregister, Commit, Failures, Lock, Unlock, Pull, Cancel})
"""Events that a client signs; each names its group."""

_ANY_PARTITION = ""
"""The key of a record already determines its partition."""
_NEVER = 2**63 - 1
"""`until` of a client's signature: it never expires, because clients do not query the end of the partition and copies
do no harm."""


class ClientKey(Struct, frozen=True):
    """A key with which clients of some groups sign."""

    key_id: str
    """Name of the key, `[A-Za-z0-9_-]{1,32}`; part of each signature."""
    groups: str
    """Beginning of the names of its groups; empty for all groups."""
    secret: bytes
    """The secret of an HMAC, or the private key of Ed25519; empty if this process does not have it."""
    public_key: bytes = b""
    """The public key of Ed25519; empty for an HMAC."""

    def __repr__(self) -> str:
        """Return all fields except the secret."""
        return f"ClientKey({self.key_id!r}, {self.groups!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """Return the same fields for rich, which would otherwise print the secret too."""
        return [("key_id", self.key_id), ("groups", self.groups)]


class ClientSigner:
    """Signs the events of one client, for one thread at a time."""

    def __init__(self, key: ClientKey, name: str) -> None:
        """Begin with count 0; `name` is 16 random hex digits that identify its records."""
        self._key = key
        self._name = name
        self._count = 0

    def sign(self, topic: str, record_key: bytes, value: bytes) -> bytes:
        """Return the value of a record, a JSON object with at least one field, with a signature."""
        self._count += 1
        signed = value[:-1] + unsigned_end(self._key.key_id, self._name, self._count, _NEVER)
        return signed + proof_of(self._key, text_of(topic, _ANY_PARTITION, record_key, signed)) + b'"}'


def covering(keys: Iterable[ClientKey], group_id: str) -> list[ClientKey]:
    """Return the keys that cover a group, in their order."""
    return [key for key in keys if group_id.startswith(key.groups)]


def problem_of(keys: Iterable[ClientKey], record: "Record", event: AnyEvent, level: int) -> str:
    """Return why a client's event must not take effect, as a sentence; empty if it may.

    Args:
        keys: the client keys of the deployment.
        record: the record as it was read.
        event: the event of the record.
        level: feature level of the shard.
    """
    if type(event) not in FROM_CLIENTS:
        return ""
    known = covering(keys, event.group_id)  # type: ignore[union-attr]  # each of FROM_CLIENTS has one
    if not known:
        return ""
    signature = read_signature(record.value or b"", level)
    if signature is None:
        return f"{_needed(event, known)}; the value does not end with a signature"
    key = next((key for key in known if key.key_id == signature.key_id), None)
    if key is None:
        return f"{_needed(event, known)}; the key {signature.key_id!r} does not cover this group"
    if not (key.secret or key.public_key):
        return f"the secret of the key {key.key_id!r} is lost"
    if not is_proof(key, signature.proof, text_of(record.topic, _ANY_PARTITION, record.key, signature.signed)):
        return f"the signature by key {key.key_id!r} does not match this topic, key and value"
    return ""


def _needed(event: AnyEvent, known: Iterable[ClientKey]) -> str:
    group_id, names = getattr(event, "group_id", ""), ", ".join(key.key_id for key in known)
    from wakeroll_model.records import type_of  # here, because clients need no decoder of records

    return f"{type_of(event)}: clients of the group {group_id!r} must sign with one of the client keys {names}"
