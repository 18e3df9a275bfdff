"""The file of the page's users: one entry per user, with the hash of the password."""

import hashlib
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
import tomllib
from collections.abc import Mapping
from pathlib import Path

from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.failure_log import Trouble
from wakeroll_pipeline.serve.access.password_hash import hash_of, is_hash, matches

log = logging.getLogger(__name__)

USER_NAME = re.compile(r"[A-Za-z0-9._@+-]{1,64}")


class InvalidUsers(InvalidUsage):
    """The file of users cannot be used; the message names the file and the remedy, but never a hash."""


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
        """A password for names that do not exist, so that they take as long as names that do."""
        self._stamp = _stamp_of(path)
        self._users = read_users(path)
        if not self._users:
            raise InvalidUsers(f"there is no user in {path}; `wakeroll users add NAME --auth-file {path}` adds one")

    def verify(self, name: str, password: str) -> bool:
        """Return whether the user exists and has this password; both answers take the same time."""
        known = self._current().get(name)
        return matches(password, self._nobody if known is None else known) and known is not None

    def seal_of(self, name: str) -> str:
        """Return a fingerprint of the user's entry, which changes with the password; empty if there is no such user."""
        known = self._current().get(name)
        return "" if known is None else hashlib.sha256(known.encode()).hexdigest()[:16]

    def _current(self) -> Mapping[str, str]:
        """Return the users. A file that cannot be read has none, so a mistake in it locks everybody out."""
        with self._lock:
            try:
                stamp = _stamp_of(self._path)
                if stamp != self._stamp:
                    self._users, self._stamp = read_users(self._path), stamp
            except InvalidUsers as problem:
                self._users, self._stamp = {}, ()
                self._trouble.began(f"{problem}; nobody can log in")
            else:
                self._trouble.ended()
            return self._users


def read_users(path: Path) -> dict[str, str]:
    """Return name -> hash of the password.

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
    users: dict[str, str] = {}
    for name, entry in entries.items():
        line = entry.get("password") if isinstance(entry, dict) and entry.keys() == {"password"} else None
        if not USER_NAME.fullmatch(name) or not isinstance(line, str) or not is_hash(line):
            raise InvalidUsers(
                f"the entry {name[:64]!r} in {path} is not valid; `wakeroll users add` writes a valid one"
            )
        users[name] = line
    return users


def add_user(path: Path, name: str, password: str, *, replaces: bool = False) -> None:
    """Add a user to a file, which is created if it is missing; only its owner may read it.

    Args:
        path: the file.
        name: name of the user.
        password: the password; only its hash is stored.
        replaces: whether a user of this name gets the new password; else that is an error.

    Raises:
        InvalidUsers: the file cannot be read, or already has the user.
        InvalidUsage: the name or the password is not valid.
        OSError: the file cannot be written.
    """
    users = check_new_user(path, name, replaces=replaces)
    try:
        users[name] = hash_of(password)
    except ValueError as error:
        raise InvalidUsage(str(error)) from None
    _write(path, users)


def check_new_user(path: Path, name: str, *, replaces: bool = False) -> dict[str, str]:
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
        raise InvalidUsers(f"there is no user {name[:64]!r} in {path}; there are: {', '.join(users) or 'none'}")
    _write(path, users)


def _write(path: Path, users: Mapping[str, str]) -> None:
    """Replace the file at once, so that no reader sees a part of it; a temporary file has mode 0600."""
    number, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write("\n".join(f'["{user}"]\npassword = "{line}"\n' for user, line in users.items()))
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def _stamp_of(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_mode
