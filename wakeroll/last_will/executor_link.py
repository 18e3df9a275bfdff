"""The link of this process to the executor of its members' last wills."""

import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

import confluent_kafka
import msgspec

import wakeroll_model
from wakeroll.errors import InvalidUsage
from wakeroll.last_will import executor
from wakeroll.last_will.login_settings import opened
from wakeroll.last_will.own_descriptor import OwnDescriptor
from wakeroll.last_will.will_file import WillFile

log = logging.getLogger("wakeroll")

VARIABLE: Final = "WAKEROLL_LAST_WILL"
"""Environment variable with the address of an executor, or ``off``."""
OFF: Final = "off"
LISTEN: Final = "unix:/run/wakeroll/will.sock"
"""Where an executor listens by default."""
_UNIX: Final = "unix:"
_LONGEST_PATH = 107
_START_S = 10.0
"""How long the start of an executor may take (s)."""
_LOSSES = 3
"""After so many executors of this process have ended, no other one is started."""


_Stamp = tuple[int, int, int]


class ExecutorLink:
    """The link to one executor, shared by all members of the process; any thread may call its methods.

    A lost link only costs time: the queues of a dead process then become free when its session ends.
    """

    def __init__(self, address: str) -> None:
        """Prepare; the first `register` connects to the executor at `address`, or starts one if that is empty."""
        self._address = address
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._wills: dict[WillFile, _Registered] = {}
        self._link: socket.socket | None = None
        self._descriptor: OwnDescriptor | None = None
        """Descriptor of the link."""
        self._losses = 0
        self._is_noted = False
        """Whether the log already has a line about the missing executor."""

    def register(self, will: WillFile, login_files: Sequence[str] = ()) -> None:
        """Register a will at the executor; `login_files`: see `Sending.files`."""
        with self._lock:
            self._wills[will] = _Registered(next(self._numbers), login_files)
            if self._link is None:
                self._connect()
            else:
                self._send(will)

    def forget(self, will: WillFile) -> None:
        """Remove a will from the executor; an executor of this process alone ends when it has none."""
        with self._lock:
            registered = self._wills.pop(will, None)
            if registered is None or self._link is None:
                return
            self._tell(executor.FORGET + registered.number.to_bytes(8, "big"))
            if not self._wills:
                self._tell(executor.END)
                self._close()

    def look(self) -> None:
        """Connect again if the executor has ended; must be called every few seconds."""
        with self._lock:
            self._check()
            if self._link is not None:
                # With a timeout, Python would wait before it reads, whatever the flags.
                self._link.setblocking(False)
                try:
                    self._hear(self._link.recv(executor.MAX_MESSAGE))
                except BlockingIOError:
                    pass
                except OSError as problem:
                    self._lose(str(problem))
            if self._link is None and self._wills:
                self._connect()

    def renew(self, will: WillFile) -> None:
        """Pass on the files of a login again if they have changed, as after the renewal of a certificate."""
        with self._lock:
            registered = self._wills.get(will)
            if registered is not None and registered.files and registered.passed != _stamps_of(registered.files):
                self._send(will)

    def _connect(self) -> None:
        if self._losses > _LOSSES and not self._address:
            return
        try:
            link = _connected(self._address) if self._address else _started()
            self._descriptor = OwnDescriptor(link.detach())
            self._link = socket.socket(fileno=self._descriptor.number)
        except (OSError, subprocess.SubprocessError) as problem:
            self._lose(_why_not(self._address, problem) if self._address else str(problem))
            return
        for will in self._wills:
            self._send(will)

    def _check(self) -> None:
        """Drop the link if its descriptor stands for another file now."""
        if self._descriptor is not None and not self._descriptor.is_open:
            self._lose("the application has closed its descriptor")

    def _send(self, will: WillFile) -> None:
        self._check()
        if self._link is None:
            return
        registered = self._wills[will]
        message = executor.REGISTER + registered.number.to_bytes(8, "big")
        self._link.settimeout(_START_S)  # a process with hundreds of members sends more than fits into the socket
        with contextlib.ExitStack() as passed:
            registered.passed = _stamps_of(registered.files)  # before they are opened: a change since shows later
            try:
                files = [_passed(passed, opened(file)) for file in registered.files]
            except OSError as problem:  # one that is being renewed; the executor keeps what it has
                log.info("cannot pass the files of the login to the executor of last wills: %s", problem)
                return
            try:
                fds = [_passed(passed, os.pidfd_open(os.getpid())), will.will_fd, will.progress_fd, *files]
            except OSError as problem:  # the next change of the will shows it, too
                log.info("cannot pass a last will to its executor: %s", problem)
                return
            try:
                socket.send_fds(self._link, [message], fds)
            except OSError as problem:
                self._lose(str(problem))

    def _tell(self, message: bytes) -> None:
        self._check()
        if self._link is not None:
            self._link.settimeout(_START_S)
            with contextlib.suppress(OSError):  # `look` finds that it has ended
                self._link.send(message)

    def _hear(self, message: bytes) -> None:
        if message == executor.READY:
            self._is_noted = False
        elif message.startswith(executor.READY.split()[0]):
            self._lose("it is of another release of wakeroll, whose wills are different; use the same release for both")
        elif message.startswith(executor.FAILED):
            self._lose(message[1:].decode(errors="replace"))
        elif not message:
            self._lose("it has ended")

    def _lose(self, why: str) -> None:
        self._close()
        self._losses += 1
        if not self._is_noted:
            self._is_noted = True
            where = f"at {_UNIX}{self._address}" if self._address else "of this process"
            log.warning(
                "the executor of last wills %s does not work: %s; if this process dies, its queues become free when "
                "its session ends",
                where,
                why,
            )

    def _close(self) -> None:
        if self._link is not None:
            self._link.detach()
            self._link = None
        if self._descriptor is not None:
            self._descriptor.close()
            self._descriptor = None

    def after_fork(self) -> None:
        """In a forked process, drop the link of the parent process."""
        with contextlib.suppress(OSError):
            self._close()


class _Registered:
    """A will that must be registered at the executor."""

    def __init__(self, number: int, files: Sequence[str]) -> None:
        self.number = number
        self.files = files
        """Paths of the files of its login."""
        self.passed: list[_Stamp | None] = []
        """State of these files when they were passed."""


def _stamps_of(files: Iterable[str]) -> list[_Stamp | None]:
    """Return values that change when a file changes; None for a file that does not exist."""
    found: list[_Stamp | None] = []
    for file in files:
        try:
            about = Path(file).stat()
        except OSError:
            found.append(None)
        else:
            found.append((about.st_dev, about.st_ino, about.st_mtime_ns))
    return found


def _passed(passed: contextlib.ExitStack, fd: int) -> int:
    """Return a descriptor that must be closed after it was passed on."""
    passed.callback(os.close, fd)
    return fd


def address_of(setting: bool | str, environment: Mapping[str, str]) -> str | None:
    """Return the path of the executor's socket; empty: an executor of this process alone; None: no executor.

    Args:
        setting: an address, ``unix:/path``; True: the address in the environment, or else an executor of this process;
            False: no executor.
        environment: environment variables of the process.

    Raises:
        InvalidUsage: see `path_of`.
    """
    if setting is False:
        return None
    where, name = (environment.get(VARIABLE, ""), VARIABLE) if setting is True else (setting, "last_will")
    if not where and setting is True:
        return ""
    if where == OFF and setting is True:
        return None
    return path_of(name, str(where))


def path_of(name: str, address: str) -> str:
    """Return the path of an address.

    Raises:
        InvalidUsage: the address does not begin with ``unix:``, or its path is not absolute or longer than the system
            allows.
    """
    path = address.removeprefix(_UNIX)
    if path == address or not path.startswith("/") or len(path.encode()) > _LONGEST_PATH:
        raise InvalidUsage(
            f"{name} is {address!r}; it must be an address of at most {_LONGEST_PATH} bytes, like {LISTEN!r}"
        )
    return path


def link_to(address: str) -> ExecutorLink:
    """Return the link of this process to an executor; with an empty address, to one that serves this process alone."""
    with _lock:
        return _links.setdefault(address, ExecutorLink(address))


def listen(name: str, address: str) -> NoReturn:
    """Replace this process by an executor that listens at an address.

    Args:
        name: name of the setting with the address, for errors.
        address: as for `path_of`.

    Raises:
        InvalidUsage: the system does not report the end of a process, or the address is not valid.
        OSError: see `command`.
    """
    if not is_supported():
        raise InvalidUsage("last wills need Linux 5.3 or later, with the system calls pidfd_open and memfd_create")
    program = command("--listen", path_of(name, address))
    os.execv(program[0], program)  # so its memory is that of the small process


def is_supported() -> bool:
    """Return whether this system reports the end of a process, as Linux does since 5.3."""
    try:
        os.close(os.pidfd_open(os.getpid()))
        os.close(os.memfd_create("wakeroll-probe", os.MFD_CLOEXEC))
    except (AttributeError, OSError):  # another system, or a sandbox that denies it
        return False
    return True


def _connected(path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        link.settimeout(_START_S)
        link.connect(path)
    except OSError:
        link.close()
        raise
    return link


def _why_not(path: str, problem: Exception) -> str:
    """Return an error for an address that this process cannot connect to, with the remedy."""
    match problem:
        case FileNotFoundError():
            return f"there is no {path}; `wakeroll last-will` must listen there, in a folder that this process has, too"
        case ConnectionRefusedError():
            return "nobody listens there any more"
        case PermissionError():
            return f"user {os.geteuid()} must be able to enter the folder {Path(path).parent}"
        case _:
            return str(problem)


def _started() -> socket.socket:
    """Start an executor for this process."""
    own, passed = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # 0 to 2 are those of the executor's standard streams.
    theirs = socket.socket(fileno=OwnDescriptor(passed.detach()).number)
    try:
        with theirs:
            child = subprocess.Popen(
                command("--socket", str(theirs.fileno())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C and signals to the process group must not end it before its work
                cwd="/",
            )
        code = child.wait(_START_S)
        if code:
            raise OSError(f"it ended with exit code {code}")
    except BaseException:
        own.close()
        raise
    return own


def command(*arguments: str) -> list[str]:
    """Return the command of an executor.

    Raises:
        OSError: this interpreter is part of another program, and no Python is known.
    """
    python = sys.executable or ""
    if not Path(python).name.startswith(("python", "pypy")):
        raise OSError(f"the interpreter is {python!r}, not Python")
    folders = {
        Path(module.__file__ or "").parent.parent: None
        for module in (sys.modules["wakeroll"], wakeroll_model, msgspec, confluent_kafka)
    }
    return [python, "-I", "-S", executor.__file__, *arguments, *map(str, folders)]


_lock = threading.Lock()
_links: dict[str, ExecutorLink] = {}


def _forget_links() -> None:
    """Drop all links in a forked process, which opens its own."""
    global _lock
    _lock = threading.Lock()
    for link in _links.values():
        link.after_fork()
    _links.clear()


_register: Callable[..., None] | None = getattr(os, "register_at_fork", None)
if _register is not None:
    _register(after_in_child=_forget_links)
