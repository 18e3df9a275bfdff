"""The file of the page's users: one entry per user, with the hash of the password, the role and the groups."""

import hashlib
import json
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.serve.access.password_hash import hash_of, is_hash, matches
from wakeroll_pipeline.serve.access.rights import Rights, Role, rights_of
from wakeroll_pipeline.storage.local_files import stamp_of

log = logging.getLogger(__name__)

USER_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


class InvalidUsers(InvalidUsage):
    """The file of users cannot be used; the message names the file and the remedy, but never a hash."""


class User(Struct, frozen=True, kw_only=True):
    """An entry of the file."""

    password: str = ""
    """Hash of the password; empty: the user is identified only by the header of a proxy."""
    rights: Rights = Rights()


class UserFile:
    """The users of a file, which is read again when it changes. Any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            InvalidUsers: it cannot be read, other users of the machine may read it, or it has no user.
        """
        self._path = path
        self._lock = threading.Lock()
        self._trouble = Trouble(log, f"the users in {path} can be read again")
        self._nobody = hash_of(secrets.token_hex(16))
        """Password hash for names that do not exist, so that their verification takes equally long."""
        self._stamp = stamp_of(path)
        self._users = read_users(path)
        if not self._users:
            raise InvalidUsers(f"there is no user in {path}; `wakeroll users add NAME --auth-file {path}` adds one")

    def verify(self, name: str, password: str) -> bool:
        """Return whether the user exists and has this password; both answers take the same time."""
        known = self._current().get(name, User()).password
        return matches(password, known or self._nobody) and bool(known)

    def seal_of(self, name: str) -> str:
        """Return a fingerprint of the user's password, which changes with it; empty if there is no such user."""
        known = self._current().get(name, User()).password
        return known and hashlib.sha256(known.encode()).hexdigest()[:16]

    def rights_of(self, name: str) -> Rights:
        """Return the rights of a user: none, if the file does not have the user."""
        known = self._current().get(name)
        return Rights(role="viewer") if known is None else known.rights

    def _current(self) -> Mapping[str, User]:
        """Return the users. A file that cannot be read has no users, so a mistake in it locks everybody out."""
        with self._lock:
            try:
                stamp = stamp_of(self._path)
                if stamp != self._stamp:
                    self._users, self._stamp = read_users(self._path), stamp
            except InvalidUsers as problem:
                self._users, self._stamp = {}, ()
                self._trouble.began(f"{problem}; nobody can log in")
            else:
                self._trouble.ended()
            return self._users


def read_users(path: Path) -> dict[str, User]:
    """Return name -> entry. A user without a role is an administrator, as in files of earlier releases.

    Raises:
        InvalidUsers: the file cannot be read, other users of the machine may use it, or an entry is not valid.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise InvalidUsers(
                f"other users of this machine may use {path} (mode {mode:o}); to fix this: chmod 600 {path}"
            )
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidUsers(
            f"cannot read the users in {path}: {reason}; `wakeroll users add NAME --auth-file {path}` creates the file"
        ) from None
    except tomllib.TOMLDecodeError:  # its message may quote a hash
        raise InvalidUsers(f"the users in {path} are not TOML; `wakeroll users add` writes a valid entry") from None
    return {name: _user_of(path, name, entry) for name, entry in entries.items()}


def _user_of(path: Path, name: str, entry: object) -> User:
    """Return an entry of the file.

    Raises:
        InvalidUsers: it is not valid.
    """
    try:
        if (
            not USER_NAME.fullmatch(name)
            or not isinstance(entry, dict)
            or entry.keys() - {"password", "role", "groups"}
        ):
            raise InvalidUsage("it must have password, role and groups only")
        line = entry.get("password", "")
        if not isinstance(line, str) or (line and not is_hash(line)):
            raise InvalidUsage("its password is no hash")
        default = Rights()
        return User(
            password=line, rights=rights_of(entry.get("role", default.role), entry.get("groups", default.groups))
        )
    except InvalidUsage as problem:
        raise InvalidUsers(
            f"the entry {name[:64]!r} in {path} is not valid: {problem}; `wakeroll users add` writes a valid one"
        ) from None


def add_user(
    path: Path,
    name: str,
    password: str | None,
    *,
    role: Role | None = None,
    groups: Sequence[str] | None = None,
    replaces: bool = False,
) -> User:
    """Add a user to a file, which is created if it is missing; only its owner may read it.

    Args:
        path: the file.
        name: name of the user.
        password: the password, of which only the hash is stored; None: a user that is identified by the header of a
            proxy.
        role: role of the user; None: administrator, or the present one of a user that is replaced.
        groups: patterns of the groups that the user may change; None: all, or the present ones.
        replaces: whether an existing user of this name gets the new password; otherwise such a user is an error.

    Returns:
        The new entry.

    Raises:
        InvalidUsers: the file cannot be read, or already has the user.
        InvalidUsage: the name, the password, the role or a pattern is not valid.
        OSError: the file cannot be written.
    """
    users = check_new_user(path, name, replaces=replaces)
    try:
        line = "" if password is None else hash_of(password)
    except ValueError as error:
        raise InvalidUsage(str(error)) from None
    users[name] = User(password=line, rights=_changed(users.get(name, User()).rights, role, groups))
    _write(path, users)
    return users[name]


def grant(path: Path, name: str, role: Role | None, groups: Sequence[str] | None) -> User:
    """Change the role or the groups of a user; the change is valid from the next request on.

    Args:
        path: the file.
        name: name of the user.
        role: the new role; None: the present one.
        groups: patterns of the groups that the user may change; None: the present ones.

    Returns:
        The new entry.

    Raises:
        InvalidUsers: the file cannot be read, or has no such user.
        InvalidUsage: the role or a pattern is not valid.
        OSError: the file cannot be written.
    """
    users = read_users(path)
    if name not in users:
        raise _no_user(path, name, users)
    users[name] = User(password=users[name].password, rights=_changed(users[name].rights, role, groups))
    _write(path, users)
    return users[name]


def _changed(rights: Rights, role: Role | None, groups: Sequence[str] | None) -> Rights:
    return rights_of(role or rights.role, rights.groups if groups is None else groups)


def _no_user(path: Path, name: str, users: Mapping[str, User]) -> InvalidUsers:
    return InvalidUsers(f"there is no user {name[:64]!r} in {path}; there are: {', '.join(users) or 'none'}")


def check_new_user(path: Path, name: str, *, replaces: bool = False) -> dict[str, User]:
    """Check that a user may be added, and return the present users; see `add_user`.

    Raises:
        InvalidUsers: the file cannot be read, or already has the user.
        InvalidUsage: the name is not valid.
    """
    if not USER_NAME.fullmatch(name):
        raise InvalidUsage(f"the name is {name[:64]!r}; it must have 1 to 64 letters, digits and . _ @ + -")
    users = read_users(path) if path.exists() else {}
    if name in users and not replaces:
        raise InvalidUsers(f"{path} already has a user {name!r}; --replace sets a new password")
    return users


def remove_user(path: Path, name: str) -> None:
    """Remove a user from a file; this also ends the user's sessions.

    Raises:
        InvalidUsers: the file cannot be read, or has no such user.
        OSError: the file cannot be written.
    """
    users = read_users(path)
    if users.pop(name, None) is None:
        raise _no_user(path, name, users)
    _write(path, users)


def _write(path: Path, users: Mapping[str, User]) -> None:
    """Replace the file atomically, so that no reader sees a part of it; the temporary file has mode 0600."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write("\n".join(_entry_of(name, user) for name, user in users.items()))
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _entry_of(name: str, user: User) -> str:
    """Return an entry in TOML, whose strings are written as in JSON; no pattern has a control character."""
    password = f'password = "{user.password}"\n' if user.password else ""
    patterns = ", ".join(json.dumps(pattern, ensure_ascii=False) for pattern in user.rights.groups)
    return f'["{name}"]\n{password}role = "{user.rights.role}"\ngroups = [{patterns}]\n'
