"""The recorded keys: a shard verifies signatures only by the keys that `keys` records have added.

A key file is not in the log. If two coordinators verified by files that differ, as during a rotation, one would reject
a record that the other accepts, and their assignments would differ for ever. So records name the keys that are valid
from there on, by their fingerprints, and a key file only holds the secrets. A process that lacks a secret must not
decide. A public key of Ed25519 is part of the record itself, so no process lacks it.
"""

import hmac
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from msgspec import structs

from wakeroll_model import client_keys, config, ed25519
from wakeroll_model.client_keys import ClientKey
from wakeroll_model.events import KeyChange, ValidKey
from wakeroll_model.signing import ROLES, Key, Keys, Signatures

_FINGERPRINT_BYTES = 16


class MissingKeys(ValueError):
    """A process cannot verify by a recorded key, so it cannot make the same decisions as the others."""


@lru_cache(maxsize=4 * config.MAX_KEYS)
def on_record(key: Key | ClientKey) -> ValidKey:
    """Return the form of a key in a `keys` record; it is cached, because each batch decodes the shard's state."""
    role: Literal["operator", "observer", "client"]
    role, groups = ("client", key.groups) if isinstance(key, ClientKey) else (key.role, "")
    digest = _fingerprint(key.public_key or key.secret, role, groups)
    return ValidKey(key_id=key.key_id, role=role, fingerprint=digest, groups=groups, public_key=key.public_key.hex())


def changed(valid: Mapping[str, ValidKey], change: KeyChange) -> dict[str, ValidKey] | str:
    """Apply a `keys` record.

    Args:
        valid: the name of each key on record -> the key, the oldest first; empty before the first record.
        change: the record; keys are removed before others are added.

    Returns:
        The keys after the record; or the reason why it must not take effect, as a sentence.
    """
    found = {key_id: key for key_id, key in valid.items() if key_id not in change.removed}
    for key in change.added:
        if found.setdefault(key.key_id, key) != key:
            return f"the key {key.key_id!r} is valid already, with another secret, role or groups; choose another name"
        if bool(key.groups) and key.role != client_keys.ROLE:
            return f"the key {key.key_id!r} has groups, but its role is {key.role}; only client keys have groups"
        if problem := _public_problem(key):
            return problem
    if len(found) > config.MAX_KEYS:
        return f"{len(found)} keys would be valid; at most {config.MAX_KEYS} may be"
    roles = {key.role for key in found.values()}
    if lacking := [role for role in ROLES if role not in roles]:
        return f"no key of the role {lacking[0]} would be valid, so nobody could sign as {lacking[0]} any more"
    return found


def verified_by(own: Signatures, valid: Mapping[str, ValidKey], shard: str) -> Signatures:
    """Return the verification of a shard with these keys on record.

    Args:
        own: the keys of this process; or recorded verdicts, which need no secret and are returned unchanged.
        valid: the recorded keys; empty: all keys of this process are valid.
        shard: name of the shard, for the message.

    Raises:
        MissingKeys: this process lacks a secret that is not lost, or the library of Ed25519; the message names the keys
            and the remedy.
    """
    if not valid or not isinstance(own, Keys):
        return own
    public = {one: _public(one) for one in valid.values() if one.public_key}
    if public and not ed25519.is_available():
        names = ", ".join(repr(one.key_id) for one in public)
        raise MissingKeys(f"{shard} has valid keys on record that this process cannot use: {names}; {ed25519.NEEDED}")
    known = {one: _lost(one) for one in valid.values() if own.may_lack or one.fingerprint in own.lost}
    known |= {on_record(key): key for key in own.all} | public
    if missing := [one for one in valid.values() if one not in known]:
        names = ", ".join(f"{one.key_id!r} (role {one.role}, fingerprint {one.fingerprint})" for one in missing)
        raise MissingKeys(
            f"{shard} has valid keys on record that the key file of this process lacks, or has with other secrets: "
            f"{names}; add them to the file and start again; docs/security.md explains what to do if a secret is lost"
        )
    found = [known[one] for one in valid.values()]
    return Keys.of(
        (key for key in found if isinstance(key, Key)),
        (key for key in found if isinstance(key, ClientKey)),
        may_lack=own.may_lack,
    )


def _lost(key: ValidKey) -> Key | ClientKey:
    """Return a key without its secret: it still covers its groups, and verifies no signature."""
    return ClientKey(key.key_id, key.groups, b"") if key.role == "client" else Key(key.key_id, key.role, b"")


@lru_cache(maxsize=4 * config.MAX_KEYS)
def _public(key: ValidKey) -> Key | ClientKey:
    """Return a key that verifies by the public key on record."""
    return structs.replace(_lost(key), public_key=bytes.fromhex(key.public_key))


def _public_problem(key: ValidKey) -> str:
    """Return why a public key must not become valid, as a sentence; empty if it may, or if there is none."""
    if not key.public_key:
        return ""
    public_key = bytes.fromhex(key.public_key)
    if problem := ed25519.problem_of(public_key):
        return f"the public key of {key.key_id!r} {problem}"
    if key.fingerprint != _fingerprint(public_key, key.role, key.groups):
        return f"the fingerprint of the key {key.key_id!r} is not that of its public key"
    return ""


def _fingerprint(material: bytes, role: str, groups: str) -> str:
    named = f"wakeroll key\n{role}\n{groups}".encode()
    return hmac.digest(material, named, "sha256")[:_FINGERPRINT_BYTES].hex()
