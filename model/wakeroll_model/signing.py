"""Signed records: events that only an operator or the observer may append, and the detection of their copies.

The bytes of a signature are in `wakeroll_model.signature_bytes`, the keys of clients in `wakeroll_model.client_keys`.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, Protocol, cast, get_args

from msgspec import Struct, structs

from wakeroll_model import client_keys, config, feature_levels
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.decisions import Rejected
from wakeroll_model.events import (
    AnyEvent,
    Arrival,
    Configure,
    Delete,
    Event,
    Inspect,
    KeyChange,
    Kick,
    Level,
    Matches,
    Pause,
    Reset,
    Route,
    Tick,
)
from wakeroll_model.records import Record, refuse, type_of
from wakeroll_model.signature_bytes import Signature, is_proof, proof_of, read_signature, text_of, unsigned_end

Role = Literal["operator", "observer"]

ROLES: tuple[Role, ...] = get_args(Role)

SIGNED_BY: Mapping[type[Event], Role] = {
    Configure: "operator",
    Reset: "operator",
    Kick: "operator",
    Delete: "operator",
    Pause: "operator",
    Inspect: "operator",
    Level: "operator",
    KeyChange: "operator",
    Tick: "observer",
    Route: "observer",
    Matches: "observer",
    Arrival: "observer",
}
"""Event type -> the role that signs it. An arrival may be unsigned: then it is a producer's hint."""


class Key(Struct, frozen=True):
    """A key of a role."""

    key_id: str
    """Name of the key, `[A-Za-z0-9_-]{1,32}`; part of each signature."""
    role: Role
    secret: bytes
    """The secret of an HMAC, or the private key of Ed25519; empty if this process does not have it."""
    public_key: bytes = b""
    """The public key of Ed25519; empty for an HMAC."""

    def __repr__(self) -> str:
        """Return all fields except the secret."""
        return f"Key({self.key_id!r}, {self.role!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """Return the same fields for rich, which would otherwise print the secret too."""
        return [("key_id", self.key_id), ("role", self.role)]


class Signatures(Protocol):
    """The interface by which a shard verifies signatures."""

    def problem(self, record: Record, event: AnyEvent, signature: Signature | None) -> str:
        """Return why the signature of a record is invalid, as a sentence; empty if it is valid."""

    def client_problem(self, record: Record, event: AnyEvent, level: int) -> str:
        """Return why the event of a client must not take effect at a feature level, as a sentence; empty if it may."""

    def may_be_routine(self, record: Record) -> bool:
        """Return whether a heartbeat may take effect without a check of its signature; see `routine_beats`."""


class Keys(Struct, frozen=True):
    """The keys of a deployment. Several keys of a role are valid at once; the last one signs."""

    by_id: Mapping[str, Key]
    clients: tuple[ClientKey, ...] = ()
    """Keys of clients, for groups whose clients must sign."""
    lost: frozenset[str] = frozenset()
    """Fingerprints of recorded keys whose secrets are lost: no signature by them is valid."""
    may_lack: bool = False
    """Whether signatures by recorded keys that this process lacks are accepted without verification; only for a process
    that neither decides nor shows decisions."""

    @classmethod
    def of(
        cls, keys: Iterable[Key], clients: Iterable[ClientKey] = (), *, lost: Iterable[str] = (), may_lack: bool = False
    ) -> "Keys":
        """Collect keys in this order; the arguments are the fields."""
        return cls({key.key_id: key for key in keys}, tuple(clients), frozenset(lost), may_lack)

    @property
    def all(self) -> tuple[Key | ClientKey, ...]:
        """The keys of all roles."""
        return (*self.by_id.values(), *self.clients)

    def __repr__(self) -> str:
        """Return the names of the keys, without their secrets."""
        return f"Keys({', '.join(f'{key_id}: {role}' for key_id, role in self.roles())})"

    def roles(self) -> list[tuple[str, str]]:
        """Return the name and the role of each key; for a client key, with its groups."""
        named: list[tuple[Key | ClientKey, str]] = [(key, str(key.role)) for key in self.by_id.values()]
        named += [(key, f"{client_keys.ROLE} of {key.groups}*") for key in self.clients]
        return [
            (key.key_id, f"{role}, public key" if key.public_key and not key.secret else role) for key, role in named
        ]

    def of_role(self, role: Role) -> list[Key]:
        """Return the keys of a role; the last one signs."""
        return [key for key in self.by_id.values() if key.role == role]

    def problem(self, record: Record, event: AnyEvent, signature: Signature | None) -> str:
        """Verify a signature; see `Signatures.problem`.

        Args:
            record: the record, whose value ends with the signature.
            event: the event of the record, of a type in `SIGNED_BY`.
            signature: the signature at the end of the value; None if there is none.
        """
        role = SIGNED_BY[type(event)]
        if signature is None:
            return f"{_needed(event, role)}; the value does not end with a signature"
        key = self.by_id.get(signature.key_id)
        if key is None:
            known = ", ".join(key.key_id for key in self.of_role(role)) or "none"
            return f"no key {signature.key_id!r}; {_needed(event, role)}; keys of this role: {known}"
        if key.role != role:
            return f"the key {key.key_id!r} has the role {key.role!r}; {_needed(event, role)}"
        if not (key.secret or key.public_key):
            return "" if self.may_lack else f"the secret of the key {key.key_id!r} is lost"
        if not is_proof(
            key, signature.proof, text_of(record.topic, str(record.partition), record.key, signature.signed)
        ):
            return f"the signature by key {key.key_id!r} does not match this topic, partition, key and value"
        longest = config.SIGNED_FOR[role]
        if signature.until > record.offset + longest:
            return (
                f"the signature is valid below offset {signature.until}; expected at most {record.offset + longest}, "
                f"{longest} above the record's offset"
            )
        return ""

    def client_problem(self, record: Record, event: AnyEvent, level: int) -> str:
        """Verify the signature of a client, if its group needs one; see `Signatures.client_problem`."""
        return client_keys.problem_of(self.clients, record, event, level) if self.clients else ""

    def may_be_routine(self, record: Record) -> bool:
        """Return whether no key covers the group; keys may have changed since the last equal heartbeat."""
        return not self.clients or not client_keys.covering(self.clients, (record.key or b"").decode())


class OnRecord(Struct, frozen=True):
    """The recorded verdicts on signatures, so that a replay of the log needs no secrets."""

    refused: Mapping[int, str] = {}
    """Offset of a record that was rejected by the rule `signature` -> the detail; all other records were accepted."""

    def problem(self, record: Record, _event: AnyEvent, _signature: Signature | None) -> str:
        """Return the recorded verdict."""
        return self.refused.get(record.offset, "")

    def client_problem(self, record: Record, _event: AnyEvent, _level: int) -> str:
        """Return the recorded verdict."""
        return self.refused.get(record.offset, "")

    def may_be_routine(self, record: Record) -> bool:
        """Return whether the record was not refused."""
        return record.offset not in self.refused


class Signer:
    """Signs the records of one producer, which keeps them in order."""

    def __init__(self, key: Key, name: str) -> None:
        """Begin with count 0.

        Args:
            key: the key of the role.
            name: 16 random hex digits that no other signer uses.
        """
        self._key = key
        self._name = name
        self._count = 0

    def sign(self, topic: str, partition: int, key: bytes | None, value: bytes, end: int) -> bytes:
        """Return the value with a signature.

        Args:
            topic: the topic of the record.
            partition: the partition of the record.
            key: the key of the record.
            value: a JSON object with at least one field.
            end: offset of the partition's next record, as far as the signer knows; not above the true one.
        """
        self._count += 1
        until = end + config.SIGNED_FOR[self._key.role]
        signed = value[:-1] + unsigned_end(self._key.key_id, self._name, self._count, until)
        return signed + proof_of(self._key, text_of(topic, str(partition), key, signed)) + b'"}'


class Signers(Struct, array_like=True):
    """The newest signers of one role and their counts, by which a shard recognizes copies of a record.

    A copy has a valid proof, but its count is not above its signer's last one, or its signature has expired. A signer
    is forgotten when all its signatures so far have expired. If there are too many signers, the one that was silent
    longest is forgotten early, and all its signatures expire with it.
    """

    void_until: int
    """A signature of an unknown signer that expires at or before this offset may be a copy, and is rejected."""
    newest: dict[str, tuple[int, int]] = {}
    """Signer -> its highest count and its highest `until`; the signer of the last record comes last."""

    def find(self, signature: Signature, offset: int) -> Literal["new", "repeated", "stale"]:
        """Classify a verified record at an offset, and remember it if it is new."""
        if signature.until <= offset:
            return "stale"
        known = self.newest.get(signature.signer)
        if known is None:
            if signature.until <= self.void_until:
                return "stale"
            known = (0, 0)
        if signature.count <= known[0]:
            return "repeated"
        self.newest.pop(signature.signer, None)
        self.newest[signature.signer] = (signature.count, max(signature.until, known[1]))
        self._forget(offset)
        return "new"

    def _forget(self, offset: int) -> None:
        while True:
            oldest = next(iter(self.newest))
            until = self.newest[oldest][1]
            if len(self.newest) > config.MAX_SIGNERS:
                self.void_until = max(self.void_until, until)
            elif until > offset:
                return
            del self.newest[oldest]


def new_signers(first: int) -> dict[Role, Signers]:
    """Return a shard's signers before its first record.

    A record that was appended before `first` may be copied after it. Its signer knew an end below `first`, so its
    signature expires before `first` + `SIGNED_FOR`; a signature made from `first` on is valid for longer.

    Args:
        first: offset of the shard's first record.
    """
    return {role: Signers(first + config.SIGNED_FOR[role] - 1) for role in ROLES}


def admit(
    record: Record,
    event: AnyEvent,
    signatures: Signatures,
    signers: Mapping[Role, Signers],
    level: int = feature_levels.NEWEST,
) -> AnyEvent | Rejected | None:
    """Decide whether an event of a type in `SIGNED_BY` may take effect.

    Args:
        record: the record as it was read.
        event: the event of the record.
        signatures: the verification to use.
        signers: the known signers of the shard, changed in place.
        level: feature level of the shard.

    Returns:
        The event; its rejection by the rule ``signature`` or ``stale``; None if it is a repetition, which is ignored.
        An unsigned arrival becomes a hint, as a producer's: without the name of an observer.
    """
    # An operator that has Ed25519 keys only must be able to raise the level: releases that do not know such keys do not
    # know the type either.
    signature = read_signature(record.value or b"", feature_levels.NEWEST if type(event) is Level else level)
    if signature is None and type(event) is Arrival:
        return structs.replace(event, observer="") if event.observer else event
    if problem := signatures.problem(record, event, signature):
        return refuse("signature", problem, event)
    if signature is None:  # it was accepted when no signatures were required
        return event
    match signers[SIGNED_BY[type(event)]].find(signature, record.offset):
        case "stale":
            detail = (
                f"the signature of signer {signature.signer} (key {signature.key_id!r}) was valid below offset "
                f"{signature.until}; the record is at offset {record.offset}: it came too late, or is a copy"
            )
            return refuse("stale", detail, event)
        case "repeated":
            return None
    return event


def _needed(event: AnyEvent, role: Role) -> str:
    what = type_of(event)
    return f"{'an' if what == 'arrival' else 'a'} {what} requires the signature of an {role}"


def role_of(text: str) -> Role:
    """Return a role by its name.

    Raises:
        ValueError: there is no such role; the message lists the roles.
    """
    if text not in ROLES:
        raise ValueError(f"no role {text!r}; there are: {', '.join(ROLES)}")
    return cast("Role", text)


DEV_KEYS = Keys.of(Key(f"dev-{role}", role, b"wakeroll: everybody knows this " + role.encode()) for role in ROLES)
"""Keys that sign as long as a deployment has no own keys. They are public, so they only protect against mistakes."""
