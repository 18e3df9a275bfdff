"""The key file of a deployment: reading, checking and writing it, and the choice of the key that signs for a role."""

import os
import re
import secrets
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from msgspec import structs

from wakeroll.errors import InvalidUsage
from wakeroll_model import client_keys, ed25519
from wakeroll_model.client_keys import ClientKey, ClientSigner
from wakeroll_model.signing import DEV_KEYS, ROLES, Key, Keys, Role, Signer

DEV_WARNING = (
    "no keys are set: the built-in development keys are in use, and anybody can act as operator and observer; "
    "see docs/security.md"
)
SECRET_BYTES = 32
Algorithm = Literal["ed25519", "hmac"]
"""Algorithm of a key. To verify, a process needs the secret of an HMAC, but only the public key of Ed25519."""
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_GROUPS = re.compile(r"[A-Za-z0-9._-]{0,255}")
_FINGERPRINT = re.compile(r"[0-9a-f]{32}")
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")
_CONTENTS = ("secret", "private_key", "public_key")
"""Field with the contents of an entry, one of these: the secret of an HMAC, or a private or a public key of Ed25519."""
_FOR_OWNER, _FOR_READERS = 0o600, 0o644
"""Modes of a file with secrets, and of a file with public keys, which only its owner may replace."""
_AnyKey = TypeVar("_AnyKey", bound=Key | ClientKey)


class InvalidKeys(InvalidUsage):
    """The key file cannot be used; the message names the file, the key and a valid value, but never a secret."""


def read_keys(path: str | os.PathLike[str] | None) -> Keys:
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


def _read(path: str | os.PathLike[str]) -> tuple[list[Key | ClientKey], list[str]]:
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
    name = ("private_key" if key.secret else "public_key") if key.public_key else "secret"
    return f'[{key.key_id}]\n{its}\n{name} = "{(key.secret or key.public_key).hex()}"\n'


def new_key(role: Role, key_id: str | None = None, algorithm: Algorithm = "hmac") -> Key:
    """Create a key with a random secret; without an id, generate one that begins with the role.

    Raises:
        InvalidUsage: the id is not 1 to 32 characters of `[A-Za-z0-9_-]`.
        InvalidKeys: the library of Ed25519 is not installed.
    """
    return Key(_new_id(role, key_id), role, *_new_secret(algorithm))


def new_client_key(groups: str, key_id: str | None = None, algorithm: Algorithm = "hmac") -> ClientKey:
    """Create a key for the clients of all groups whose names begin with `groups`.

    Raises:
        InvalidUsage: the id is not 1 to 32 characters of `[A-Za-z0-9_-]`, or no name of a group begins with `groups`.
        InvalidKeys: the library of Ed25519 is not installed.
    """
    if not _GROUPS.fullmatch(groups):
        raise InvalidUsage(f"the beginning of the groups is {groups!r}; it must be as in names of groups")
    return ClientKey(_new_id(client_keys.ROLE, key_id), groups, *_new_secret(algorithm))


def public_half(key: _AnyKey) -> _AnyKey:
    """Return an Ed25519 key without its private key: it verifies, and does not sign.

    Raises:
        InvalidKeys: the key is the secret of an HMAC.
    """
    if not key.public_key:
        raise InvalidKeys(
            f"the key {key.key_id!r} is the secret of an HMAC, so a process that verifies by it could also sign; "
            "replace it by an Ed25519 key (docs/security.md, Rotating keys)"
        )
    return structs.replace(key, secret=b"")


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


def create_keys(path: Path, keys: Sequence[Key | ClientKey]) -> bool:
    """Create a key file; return False if it exists, and leave it as it is.

    The file is written atomically: a process that reads it meanwhile finds all keys or no file. Only its owner can read
    it, unless it has public keys only.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        with _written(path, keys) as whole:
            os.link(whole, path)  # fails if the file exists, as no other operation does
    except FileExistsError:
        return False
    return True


def replace_keys(path: Path, keys: Sequence[Key | ClientKey]) -> None:
    """Write a key file as `create_keys` does, in place of an earlier one without secrets.

    Raises:
        InvalidKeys: the earlier file cannot be read, or has a secret, which might be its last copy.
        OSError: the file cannot be written.
    """
    if path.exists() and any(key.secret for key in _read(path)[0]):
        raise InvalidKeys(f"{path} has keys that sign, and is not replaced; name another file")
    with _written(path, keys) as whole:
        whole.replace(path)


@contextmanager
def _written(path: Path, keys: Sequence[Key | ClientKey]) -> Iterator[Path]:
    """Write keys to a temporary file beside `path`; remove the file at the end unless it was renamed."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        unfinished.touch(mode=_FOR_OWNER, exist_ok=False)
        unfinished.write_text("\n".join(map(entry_of, keys)), encoding="utf-8")
        if not any(key.secret for key in keys):
            unfinished.chmod(_FOR_READERS)
        yield unfinished
    finally:
        unfinished.unlink(missing_ok=True)


def warning_of(path: str | os.PathLike[str] | None) -> str:
    """Return a warning if the keys of a deployment protect nothing; otherwise an empty string.

    They protect nothing if no keys are set, or if every user of the machine may read or write the file. A file with
    public keys only may be readable for everybody.

    Raises:
        InvalidKeys: the file cannot be read.
    """
    if path is None:
        return DEV_WARNING
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    if not any(key.secret for key in _read(path)[0]):
        exposed = (
            f"every user of this machine may change the keys that verify, in {path} (mode {mode:o}); to fix this: "
        )
        return f"{exposed}chmod o-w {path}" if mode & stat.S_IWOTH else ""
    exposed = f"every user of this machine may use the keys in {path} (mode {mode:o}); to fix this: chmod 600 {path}"
    return exposed if mode & stat.S_IRWXO else ""


def key_to_sign(keys: Keys, role: Role) -> Key:
    """Return the key that a role signs with: the last one of the file that is not a public key.

    Raises:
        InvalidKeys: the file has no such key of the role.
    """
    found = keys.of_role(role)
    if not found:
        raise InvalidKeys(f"there is no key of the role {role} to sign with; keys found: {', '.join(keys.by_id)}")
    return _able_to_sign(found, role)


def require_role(keys: Keys, role: Role) -> None:
    """Check that records of a role can be verified by the keys of a file.

    Raises:
        InvalidKeys: the file has no key of the role.
    """
    if not keys.of_role(role):
        raise InvalidKeys(f"there is no key of the role {role} to verify with; keys found: {', '.join(keys.by_id)}")


def new_signer(key: Key) -> Signer:
    """Return a signer with a new random id."""
    return Signer(key, secrets.token_hex(8))


def client_key_for(keys: Iterable[ClientKey], group_id: str) -> ClientKey:
    """Return the key that signs for clients of a group: the last one that covers the group and is not a public key.

    Raises:
        InvalidKeys: none of the keys is such a key.
    """
    found = client_keys.covering(keys, group_id)
    if not found:
        raise InvalidKeys(f"there is no client key for the group {group_id!r}; a key covers the groups of its prefix")
    return _able_to_sign(found, client_keys.ROLE)


def new_client_signer(key: ClientKey) -> ClientSigner:
    """Return a signer of a client's events with a new random id."""
    return ClientSigner(key, secrets.token_hex(8))


def _new_id(role: str, key_id: str | None) -> str:
    key_id = f"{role}-{secrets.token_hex(3)}" if key_id is None else key_id
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidUsage(f"the id of the key is {key_id!r}; it must be 1 to 32 letters, digits, hyphens, underscores")
    return key_id


def _new_secret(algorithm: Algorithm) -> tuple[bytes, bytes]:
    """Return a random secret, and its public key if it has one."""
    secret = secrets.token_bytes(SECRET_BYTES)
    return secret, _public_key_of(secret) if algorithm == "ed25519" else b""


def _public_key_of(private_key: bytes) -> bytes:
    try:
        return ed25519.public_key_of(private_key)
    except ImportError:
        raise InvalidKeys(ed25519.NEEDED) from None


def _able_to_sign(found: list[_AnyKey], role: str) -> _AnyKey:
    """Return the last key that is not a public key only."""
    if able := [key for key in found if key.secret]:
        return able[-1]
    raise InvalidKeys(
        f"the key {found[-1].key_id!r} of the role {role} is a public key, which only verifies; to sign, name the file "
        "with its private key"
    )


def _key(path: str | os.PathLike[str], key_id: str, entry: Any) -> Key | ClientKey:
    """Convert an entry to a key. An error never contains a value, which may be a secret in the wrong place."""
    contents = [name for name in _CONTENTS if isinstance(entry, dict) and name in entry]
    if not _KEY_ID.fullmatch(key_id) or not isinstance(entry, dict):
        raise InvalidKeys(f"an entry in {path} must have an id, a role and a key, as `wakeroll keys new` prints it")
    if len(contents) != 1 or entry.keys() - {"groups", *contents} != {"role"}:
        raise InvalidKeys(
            f"key {key_id!r} in {path} must have a role and one of {', '.join(_CONTENTS)}, and nothing else, as "
            "`wakeroll keys new` prints it"
        )
    role, name, content = entry["role"], contents[0], entry[contents[0]]
    if role not in ROLES and role != client_keys.ROLE:
        raise InvalidKeys(f"the role of key {key_id!r} in {path} must be {', '.join(ROLES)} or {client_keys.ROLE}")
    if (role == client_keys.ROLE) != ("groups" in entry):
        raise InvalidKeys(f"key {key_id!r} in {path}: a key of the role client must have `groups`, and no other may")
    if not isinstance(content, str) or not _SECRET.fullmatch(content):
        raise InvalidKeys(f"the {name} of key {key_id!r} in {path} must be {2 * SECRET_BYTES} hex digits")
    secret, public_key = _contents(path, key_id, name, bytes.fromhex(content))
    if role != client_keys.ROLE:
        return Key(key_id, role, secret, public_key)
    if not isinstance(entry["groups"], str) or not _GROUPS.fullmatch(entry["groups"]):
        raise InvalidKeys(f"`groups` of key {key_id!r} in {path} must be the beginning of names of groups")
    return ClientKey(key_id, entry["groups"], secret, public_key)


def _contents(path: str | os.PathLike[str], key_id: str, name: str, content: bytes) -> tuple[bytes, bytes]:
    """Return the secret and the public key of an entry; one of them may be empty."""
    if name == "secret":
        return content, b""
    if not ed25519.is_available():
        raise InvalidKeys(f"the {name} of key {key_id!r} in {path} cannot be used: {ed25519.NEEDED}")
    if name == "private_key":
        return content, ed25519.public_key_of(content)
    if problem := ed25519.problem_of(content):
        raise InvalidKeys(f"the public_key of key {key_id!r} in {path} {problem}")
    return b"", content
