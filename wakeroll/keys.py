"""The key file of a deployment: how to read, check and write it, and which key a role signs with."""

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wakeroll.errors import InvalidUsage
from wakeroll_model import client_keys
from wakeroll_model.client_keys import ClientKey, ClientSigner
from wakeroll_model.signing import DEV_KEYS, ROLES, Key, Keys, Role, Signer

DEV_WARNING = (
    "no keys are set: the built-in development keys are in use, and anybody can act as operator and observer; "
    "see docs/security.md"
)
SECRET_BYTES = 32

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_GROUPS = re.compile(r"[A-Za-z0-9._-]{0,255}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


class InvalidKeys(InvalidUsage):
    """The key file cannot be used; the message names the file, the key and a valid value, but never a secret."""


def read_keys(path: str | Path | None) -> Keys:
    """Read a key file; without a path, return the development keys.

    Raises:
        InvalidKeys: the file cannot be read, or an entry does not have the format of `entry_of`.
    """
    if path is None:
        return DEV_KEYS
    keys, lost = _read(path)
    if not keys:
        raise InvalidKeys(f"there is no key in {path}; `wakeroll keys new --role ROLE --file {path}` adds one")
    clients = [key for key in keys if isinstance(key, ClientKey)]
    return Keys.of((key for key in keys if isinstance(key, Key)), clients, lost=lost)


def _read(path: str | Path) -> tuple[list[Key | ClientKey], list[str]]:
    """Return the keys of a file, and the fingerprints of lost ones."""
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise InvalidKeys(f"cannot read the keys in {path}: {error}") from None
    except tomllib.TOMLDecodeError:  # its message may quote a secret
        raise InvalidKeys(f"the keys in {path} are not TOML; `wakeroll keys new` prints a valid entry") from None
    lost = entries.pop("lost", []) if isinstance(entries.get("lost"), list) else []
    if not all(isinstance(one, str) and _FINGERPRINT.fullmatch(one) for one in lost):
        raise InvalidKeys(f"`lost` in {path} must be a list of fingerprints, as `wakeroll keys list` prints them")
    return [_key(path, key_id, entry) for key_id, entry in entries.items()], lost


def entry_of(key: Key | ClientKey) -> str:
    """Return a key as an entry of a key file.

    >>> print(entry_of(Key("night-shift", "operator", bytes(32))), end="")
    [night-shift]
    role = "operator"
    secret = "0000000000000000000000000000000000000000000000000000000000000000"
    """
    its = f'role = "client"\ngroups = "{key.groups}"' if isinstance(key, ClientKey) else f'role = "{key.role}"'
    return f'[{key.key_id}]\n{its}\nsecret = "{key.secret.hex()}"\n'


def new_key(role: Role, key_id: str | None = None) -> Key:
    """Create a key with a random secret; without an id, generate one that begins with the role.

    Raises:
        InvalidUsage: the id is not 1 to 32 characters of `[A-Za-z0-9_-]`.
    """
    return Key(_new_id(role, key_id), role, secrets.token_bytes(SECRET_BYTES))


def new_client_key(groups: str, key_id: str | None = None) -> ClientKey:
    """Create a key for the clients of all groups whose names begin with `groups`.

    Raises:
        InvalidUsage: the id is not 1 to 32 characters of `[A-Za-z0-9_-]`, or no name of a group begins with `groups`.
    """
    if not _GROUPS.fullmatch(groups):
        raise InvalidUsage(f"the beginning of the groups is {groups!r}; it must be as in names of groups")
    return ClientKey(_new_id(client_keys.ROLE, key_id), groups, secrets.token_bytes(SECRET_BYTES))


def add_key(path: Path, key: Key | ClientKey) -> None:
    """Append a key to a file, which may be empty. A new file is readable only by its owner.

    Raises:
        InvalidKeys: the file cannot be read, or already has a key with this id.
        OSError: the file cannot be written.
    """
    if path.exists() and key.key_id in {known.key_id for known in _read(path)[0]}:
        raise InvalidKeys(f"{path} already has a key {key.key_id!r}; choose another id")
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if path.stat().st_size else "") + entry_of(key))


def create_keys(path: Path, keys: Iterable[Key | ClientKey]) -> bool:
    """Create a key file that only its owner can read; return False if it exists, and leave it as it is.

    It appears whole: a process that reads it meanwhile finds all keys or no file.

    Raises:
        OSError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        unfinished.touch(mode=0o600, exist_ok=False)
        unfinished.write_text("\n".join(map(entry_of, keys)), encoding="utf-8")
        os.link(unfinished, path)  # fails if the file exists, as no other operation does
    except FileExistsError:
        return False
    finally:
        unfinished.unlink(missing_ok=True)
    return True


def warning_of(path: str | Path | None) -> str:
    """Return a warning if the keys of a deployment protect nothing, or an empty string if they do.

    They protect nothing if no keys are set, or if every user of the machine may read or write the file.
    """
    if path is None:
        return DEV_WARNING
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    exposed = f"every user of this machine may use the keys in {path} (mode {mode:o}); to fix this: chmod 600 {path}"
    return exposed if mode & stat.S_IRWXO else ""


def key_to_sign(keys: Keys, role: Role) -> Key:
    """Return the key that a role signs with: the last one of the file.

    Raises:
        InvalidKeys: the file has no key of the role.
    """
    found = keys.of_role(role)
    if not found:
        raise InvalidKeys(f"there is no key of the role {role} to sign with; keys found: {', '.join(keys.by_id)}")
    return found[-1]


def new_signer(key: Key) -> Signer:
    """Return a signer with a new random id, which no shard has seen yet."""
    return Signer(key, secrets.token_hex(8))


def client_key_for(keys: Iterable[ClientKey], group_id: str) -> ClientKey:
    """Return the key with which the clients of a group sign: the last one that covers the group.

    Raises:
        InvalidKeys: none of the keys covers the group.
    """
    found = client_keys.covering(keys, group_id)
    if not found:
        raise InvalidKeys(f"there is no client key for the group {group_id!r}; a key covers the groups of its prefix")
    return found[-1]


def new_client_signer(key: ClientKey) -> ClientSigner:
    """Return a signer of a client's events with a new random id."""
    return ClientSigner(key, secrets.token_hex(8))


def _new_id(role: str, key_id: str | None) -> str:
    key_id = f"{role}-{secrets.token_hex(3)}" if key_id is None else key_id
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidUsage(f"the id of the key is {key_id!r}; it must be 1 to 32 letters, digits, hyphens, underscores")
    return key_id


def _key(path: str | Path, key_id: str, entry: Any) -> Key | ClientKey:
    """Convert an entry to a key. An error never quotes a value: it may be a secret in the wrong place."""
    names = entry.keys() - {"groups"} if isinstance(entry, dict) else set()
    if not _KEY_ID.fullmatch(key_id) or names != {"role", "secret"}:
        raise InvalidKeys(f"an entry in {path} must have an id, a role and a secret, as `wakeroll keys new` prints it")
    role, secret = entry["role"], entry["secret"]
    if role not in ROLES and role != client_keys.ROLE:
        raise InvalidKeys(f"the role of key {key_id!r} in {path} must be {', '.join(ROLES)} or {client_keys.ROLE}")
    if (role == client_keys.ROLE) != ("groups" in entry):
        raise InvalidKeys(f"key {key_id!r} in {path}: a key of the role client must have `groups`, and no other may")
    if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise InvalidKeys(f"the secret of key {key_id!r} in {path} must be {2 * SECRET_BYTES} hex digits")
    if role != client_keys.ROLE:
        return Key(key_id, role, bytes.fromhex(secret))
    if not isinstance(entry["groups"], str) or not _GROUPS.fullmatch(entry["groups"]):
        raise InvalidKeys(f"`groups` of key {key_id!r} in {path} must be the beginning of names of groups")
    return ClientKey(key_id, entry["groups"], bytes.fromhex(secret))
