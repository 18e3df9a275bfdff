"""The file with a deployment's keys: read, checked, written; and who may sign with what."""

import re
import secrets
import stat
import tomllib
from pathlib import Path
from typing import Any

from model.signing import DEV_KEYS, ROLES, Key, Keys, Role, Signer
from wakeroll.errors import InvalidUsage

DEV_WARNING = (
    "no keys are set: the built-in development keys are in use, with which everybody may act as operator and observer; "
    "see docs/security.md"
)
SECRET_BYTES = 32

_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


class InvalidKeys(InvalidUsage):
    """A file of keys that cannot be used; the message names the file, the key and what would be right, no secret."""


def read_keys(path: str | Path | None) -> Keys:
    """Read a file of keys; without a path, return the development keys.

    Raises:
        InvalidKeys: it cannot be read, or an entry is not as `entry_of` writes it.
    """
    if path is None:
        return DEV_KEYS
    try:
        entries = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise InvalidKeys(f"cannot read the keys in {path}: {error}") from None
    except tomllib.TOMLDecodeError:  # what it says may quote a secret
        raise InvalidKeys(f"the keys in {path} are not TOML; `wakeroll keys new` prints how an entry looks") from None
    if not entries:
        raise InvalidKeys(f"there is no key in {path}; `wakeroll keys new` makes one")
    return Keys.of(_key(path, key_id, entry) for key_id, entry in entries.items())


def entry_of(key: Key) -> str:
    """Return a key as it stands in a file.

    >>> print(entry_of(Key("night-shift", "operator", bytes(32))), end="")
    [night-shift]
    role = "operator"
    secret = "0000000000000000000000000000000000000000000000000000000000000000"
    """
    return f'[{key.key_id}]\nrole = "{key.role}"\nsecret = "{key.secret.hex()}"\n'


def new_key(role: Role, key_id: str | None = None) -> Key:
    """Make a key with a random secret; without an id, with one that says its role.

    Raises:
        InvalidUsage: the id has other characters than `[A-Za-z0-9_-]`, or more than 32 of them.
    """
    key_id = f"{role}-{secrets.token_hex(3)}" if key_id is None else key_id
    if not _KEY_ID.fullmatch(key_id):
        raise InvalidUsage(f"the id of the key is {key_id!r}; it must be 1 to 32 letters, digits, hyphens, underscores")
    return Key(key_id, role, secrets.token_bytes(SECRET_BYTES))


def add_key(path: Path, key: Key) -> None:
    """Append a key to a file; a new file can be read by its owner alone.

    Raises:
        InvalidKeys: the file cannot be read, or has a key of this id.
        OSError: it cannot be written.
    """
    if path.exists() and key.key_id in read_keys(path).by_id:
        raise InvalidKeys(f"{path} has a key {key.key_id!r}; choose another id")
    path.touch(mode=0o600)
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if path.stat().st_size else "") + entry_of(key))


def warning_of(path: str | Path | None) -> str:
    """Return why the keys of a deployment protect nothing, as a sentence; empty if they do.

    There are none, or every user of the machine may read or write the file.
    """
    if path is None:
        return DEV_WARNING
    mode = stat.S_IMODE(Path(path).stat().st_mode)
    exposed = f"every user of this machine may use the keys in {path} (mode {mode:o}); mend it with: chmod 600 {path}"
    return exposed if mode & stat.S_IRWXO else ""


def key_to_sign(keys: Keys, role: Role) -> Key:
    """Return the key that a role signs with: the last one of the file.

    Raises:
        InvalidKeys: there is none.
    """
    found = keys.of_role(role)
    if not found:
        raise InvalidKeys(f"there is no key of an {role} to sign with; there are: {', '.join(keys.by_id)}")
    return found[-1]


def new_signer(key: Key) -> Signer:
    """Begin to sign as somebody whom no shard has heard of."""
    return Signer(key, secrets.token_hex(8))


def _key(path: str | Path, key_id: str, entry: Any) -> Key:
    """Make a key of an entry; an error never quotes a value, which may be a secret in the wrong place."""
    if not _KEY_ID.fullmatch(key_id) or not isinstance(entry, dict) or entry.keys() != {"role", "secret"}:
        raise InvalidKeys(f"an entry in {path} must have an id, a role and a secret, as `wakeroll keys new` prints it")
    role, secret = entry["role"], entry["secret"]
    if role not in ROLES:
        raise InvalidKeys(f"the role of key {key_id!r} in {path} must be {' or '.join(ROLES)}")
    if not isinstance(secret, str) or not _SECRET.fullmatch(secret):
        raise InvalidKeys(f"the secret of key {key_id!r} in {path} must be {2 * SECRET_BYTES} hex digits")
    return Key(key_id, role, bytes.fromhex(secret))
