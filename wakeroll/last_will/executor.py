"""The executor of last wills: a small process that waits until a member's process ends, and then sends its events.

Only the kernel decides whether a process has ended. A process hands over a descriptor of itself (pidfd), which becomes
readable when the process has ended, and not before: not when it is stopped, hangs, is swapped out or closes its socket,
nor when a child that it forked ends or lives on. Until then the executor sleeps, without a timer and without a
connection to Kafka.

It runs as ``python -I -S executor.py``, started by the process itself or by ``wakeroll last-will --listen``. It imports
as little as possible, because it stays in memory as long as the application.
"""

import array
import contextlib
import errno
import fcntl
import importlib
import os
import resource
import select
import signal
import socket
import struct
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wakeroll.last_will.will_file import Sending
    from wakeroll_model.last_will import LastWill

READY = b"ready 4"
"""Sent to each process that connects. It contains the version of the format of wills and of these messages, because a
listening executor may be of another release."""
REGISTER, FORGET, END = b"+", b"-", b"."
"""First byte of a message. REGISTER: a will with its number (8 bytes) and descriptors of the process, the will, the
progress and the files of its login. FORGET: the number of a will that is not needed any more. END: no will follows, and
an executor that serves only this process may end."""
FAILED = b"!"
"""First byte of a message to the process: the reason why the executor cannot work."""
MAX_MESSAGE = 256
MAX_FDS = 16
"""Maximum number of descriptors of a message."""

_CLOSED_MS = 60_000
"""How long the kernel may take to report the end of a process after its socket was closed (ms). The kernel closes the
files first. A process that replaces its program (exec) closes its socket too, and does not end."""
_STOPS = (signal.SIGTERM, signal.SIGINT)
FLUSH_S = 30.0
"""How long to wait for Kafka's acknowledgement (s); the session of the member ends about then anyway."""
_IMPORTED = ("wakeroll", "confluent_kafka")
"""Packages whose `__init__` is not run, because it would import much more; only single modules are imported."""
_OURS = tuple(f"wakeroll.last_will.{name}" for name in ("login_settings", "own_descriptor", "will_file"))
_NEEDED = ("confluent_kafka.cimpl", "msgspec", *_OURS, "wakeroll_model.client_keys")
"""Modules that `execute` uses."""
_GET_INFO = 0xC048FF0B
_INFO = struct.Struct("=QQ11IiII")
"""Layout of the kernel's `pidfd_info`: mask, cgroup, eleven numbers, exit status, two numbers of a core dump."""
_HAS_EXIT = 1 << 3
_EXIT_CODE = -3
_AT_ONCE = {"enable.idempotence": False}
"""Setting of the producers that send wills. An idempotent producer would wait half a second for its producer id. One
request is sent at a time, so the events stay in order, and a repeated event has no effect."""
_REAPED_MS = 100
"""How long to wait for the exit status (ms): the kernel has it only after the parent has collected it."""


class _Process:
    """A process with members."""

    def __init__(self, link: socket.socket) -> None:
        self.link = link
        self.pidfd = -1
        self.wills: dict[int, Sequence[int]] = {}
        """Number -> the descriptors of the will, of the progress, and of the files of the login."""

    def close(self) -> None:
        self.link.close()
        for fd in (*(fd for fds in self.wills.values() for fd in fds), *([self.pidfd] if self.pidfd >= 0 else [])):
            os.close(fd)


class Executor:
    """Waits for the end of processes, and executes the wills of their members."""

    def __init__(self, own: socket.socket | None, listener: socket.socket | None) -> None:
        """Wait for the process at the other end of a socket, or for each one that connects to a listening socket."""
        self._poll = select.poll()
        self._listener = listener
        self._by_fd: dict[int, _Process] = {}
        """Descriptor of a socket or of a process -> the process."""
        self._closing: dict[_Process, float] = {}
        self._stop: socket.socket | None = None
        """Readable when this process has received a signal that stops it."""
        if own is not None:
            self._add(own)
        if listener is not None:
            self._poll.register(listener.fileno(), select.POLLIN)

    def stop_by_signals(self) -> None:
        """Let SIGTERM and SIGINT end `run`."""
        self._stop, written = socket.socketpair()
        written.setblocking(False)
        for number in _STOPS:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(written.detach())
        self._poll.register(self._stop.fileno(), select.POLLIN)

    def run(self) -> None:
        """Run until no process is left to wait for; a listening executor runs until a signal stops it."""
        while self._listener is not None or self._by_fd:
            found = self._poll.poll(_CLOSED_MS if self._closing else None)
            self._serve(found)
            if self._stop is not None and any(fd == self._stop.fileno() for fd, _ in found):
                self._poll.unregister(self._stop.fileno())
                while found := self._poll.poll(0):  # a process may have ended just before
                    self._serve(found)
                return

    def _serve(self, found: Sequence[tuple[int, int]]) -> None:
        """Handle the descriptors that became readable."""
        for fd, events in found:
            if self._listener is not None and fd == self._listener.fileno():
                self._accept()
            elif (process := self._by_fd.get(fd)) is None:
                continue  # it was removed in this round
            elif fd == process.pidfd:
                self._read(process)  # what it sent before it ended
                self._end(process)
            elif events:
                self._read(process)
        self._drop_closed()

    def _accept(self) -> None:
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._add(self._listener.accept()[0])

    def _add(self, link: socket.socket) -> None:
        link.setblocking(False)
        process = _Process(link)
        self._by_fd[link.fileno()] = process
        self._poll.register(link.fileno(), select.POLLIN)
        with contextlib.suppress(OSError):
            link.send(READY)

    def _read(self, process: _Process) -> None:
        """Read all messages of a process."""
        while process.link.fileno() in self._by_fd:
            try:
                message, fds = _received(process.link)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # the process has closed the socket before it read everything; what it sent is still there
            except OSError:
                message, fds = b"", []
            if not message:
                self._unlink(process)
                return
            kind, number = message[:1], int.from_bytes(message[1:9], "big")
            if kind == REGISTER and len(fds) >= 3:
                self._register(process, number, fds[0], fds[1:])
                continue
            for fd in fds:
                os.close(fd)
            if kind == FORGET and number in process.wills:
                for fd in process.wills.pop(number):
                    os.close(fd)
            elif kind == END and not process.wills:
                self._remove(process)

    def _register(self, process: _Process, number: int, pidfd: int, fds_of_will: Sequence[int]) -> None:
        for fd in process.wills.get(number, ()):
            os.close(fd)
        process.wills[number] = fds_of_will
        if process.pidfd >= 0:
            os.close(pidfd)
        elif not _is_its_own(process.link, pidfd):
            with contextlib.suppress(OSError):
                process.link.send(FAILED + b"the descriptor is not that of the process that connected")
            os.close(pidfd)
        else:
            process.pidfd = pidfd
            self._by_fd[pidfd] = process
            self._poll.register(pidfd, select.POLLIN)

    def _unlink(self, process: _Process) -> None:
        """Note that a process closed its socket: it is ending, or has replaced its program."""
        self._poll.unregister(process.link.fileno())
        del self._by_fd[process.link.fileno()]
        if process.pidfd < 0:
            process.close()
        else:
            self._closing[process] = _now_ms() + _CLOSED_MS

    def _drop_closed(self) -> None:
        for process, until_ms in list(self._closing.items()):
            if _now_ms() >= until_ms:
                self._remove(process)

    def _remove(self, process: _Process) -> None:
        self._closing.pop(process, None)
        for fd in (process.link.fileno(), process.pidfd):
            if self._by_fd.pop(fd, None) is not None:
                self._poll.unregister(fd)
        process.close()

    def _end(self, process: _Process) -> None:
        """Execute the wills of a process that has ended."""
        if self._listener is None or os.fork() == 0:  # others may end while this one's broker does not answer
            try:
                if self._listener is not None:
                    for number in _STOPS:
                        signal.signal(number, signal.SIG_IGN)
                execute(
                    list(process.wills.values()),
                    lambda: how_it_ended(process.pidfd),
                    is_shared=self._listener is not None,
                )
            finally:
                os._exit(0)
        self._remove(process)


def execute(wills: Sequence[Sequence[int]], how: Callable[[], str], *, is_shared: bool) -> None:
    """Send the events of wills.

    Args:
        wills: descriptors of the will, of the progress and of the files of the login, of each member.
        how: returns how the process ended, empty if that is not known; called while the producers connect to the
            brokers.
        is_shared: whether the wills may be those of a process with fewer rights than this one.
    """
    import msgspec
    from confluent_kafka.cimpl import KafkaException, Producer

    from wakeroll.last_will.login_settings import in_memory
    from wakeroll.last_will.will_file import Will, read_will
    from wakeroll_model.client_keys import ClientSigner

    encode = msgspec.json.Encoder().encode
    producers: dict[str, Any] = {}
    ready: list[tuple[Will, Any]] = []
    for will_fd, progress_fd, *files in wills:
        found = read_will(will_fd, progress_fd)
        if found is None:
            continue
        try:
            settings, contents = _login_of(found.sending, files, is_shared=is_shared)
            login = repr((sorted(settings.items()), sorted(contents.items())))
            if login not in producers:
                in_files = {name: f"/proc/self/fd/{in_memory(content)}" for name, content in contents.items()}
                producers[login] = Producer({**settings, **in_files, **_AT_ONCE})
        except (KafkaException, OSError) as problem:  # such as a certificate that is none
            why = problem.args[0].str() if isinstance(problem, KafkaException) else problem
            _tell(f"cannot execute the {_named(found.will)}: {why}; its session will end")
            continue
        ready.append((found, producers[login]))
    died = how()
    for (sending, will, progress), producer in ready:
        key = will.group_id.encode()
        signer = None if sending.client_key is None else ClientSigner(sending.client_key, os.urandom(8).hex())
        for event in will.events(progress, died):
            value = encode(event)
            if signer is not None:
                value = signer.sign(sending.topic, key, value)
            producer.produce(sending.topic, value=value, key=key)
        _tell(f"executes the {_named(will)}, whose process has ended{died and ': '}{died}")
    for producer in producers.values():
        if unsent := producer.flush(FLUSH_S):
            _tell(f"no broker has taken {unsent} events of last wills within {FLUSH_S:g} s; the sessions will end")


def _login_of(
    sending: "Sending", files: Sequence[int], *, is_shared: bool
) -> tuple[dict[str, str | int | float | bool], dict[str, bytes]]:
    """Return the settings of a will that name no file; and for each other one, its name -> the content of the file.

    Raises:
        OSError: a setting is not accepted, or a file cannot be read.
    """
    from wakeroll.last_will.login_settings import OF_THE_EXECUTOR, content_of, not_accepted

    if len(files) != len(sending.files):
        raise OSError(f"{len(sending.files)} files of its login are named, and {len(files)} were passed")
    settings = {name: value for name, value in sending.settings.items() if name not in sending.files}
    if is_shared:
        if wrong := not_accepted(sending.settings, sending.files):
            raise OSError(f"a listening executor does not accept {', '.join(wrong)}")
        settings = {name: value for name, value in settings.items() if name not in OF_THE_EXECUTOR}
    contents = {}
    for name, fd in zip(sending.files, files, strict=True):
        try:
            contents[name] = content_of(fd)
        except OSError as problem:
            raise OSError(f"cannot read the file of {name}: {problem}") from None
    return settings, contents


def _named(will: "LastWill") -> str:
    return f"last will of the client {will.client_id!r} of the group {will.group_id!r}"


def _tell(line: str) -> None:
    """Write a line to the log of a listening executor; an executor of one process has no log."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def how_it_ended(pidfd: int) -> str:
    """Return the signal or the exit code of a process that has ended; empty if the system does not report it."""
    ended = select.poll()
    ended.register(pidfd, 0)  # only POLLHUP: its parent has asked for the status
    ended.poll(_REAPED_MS)
    status = _kernels_status(pidfd)
    if status is None:
        status = _zombies_status(pidfd)
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return f"exit code {os.WEXITSTATUS(status)}"


def _kernels_status(pidfd: int) -> int | None:
    """Return the exit status that newer kernels keep with the descriptor."""
    asked = bytearray(_INFO.pack(_HAS_EXIT, *[0] * 15))
    try:
        fcntl.ioctl(pidfd, _GET_INFO, asked)
    except OSError:
        return None
    found = _INFO.unpack(asked)
    return found[_EXIT_CODE] if found[0] & _HAS_EXIT else None


def _zombies_status(pidfd: int) -> int | None:
    """Return the exit status of a process whose parent has not collected it yet."""
    try:
        pid = _pid_of(pidfd)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return int(fields[-1]) if fields and fields[0] in "ZX" else None


def _pid_of(pidfd: int) -> int:
    """Return the pid of a descriptor; 0 or -1 if the process is not visible from here."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value)
    raise ValueError(pidfd)


def _is_its_own(link: socket.socket, pidfd: int) -> bool:
    """Return whether a descriptor is of the process at the other end of the socket, as far as that is visible."""
    peer = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    try:
        return _pid_of(pidfd) in (peer, 0, -1) or peer == 0
    except (OSError, ValueError):
        return False


def _received(link: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message with its descriptors; an empty one at the end."""
    fds = array.array("i")
    message, ancillary, _, _ = link.recvmsg(
        MAX_MESSAGE, socket.CMSG_LEN(MAX_FDS * fds.itemsize), socket.MSG_CMSG_CLOEXEC
    )
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


def _now_ms() -> float:
    return time.monotonic() * 1_000


def _import_parts() -> None:
    """Import all modules that `execute` needs, so that it reads no file, and none can be missing by then."""
    for name in _IMPORTED:
        package = types.ModuleType(name)
        package.__path__ = [str(Path(folder) / name) for folder in sys.path if (Path(folder) / name).is_dir()]
        sys.modules[name] = package
    for name in _NEEDED:
        importlib.import_module(name)


def _listen(path: str) -> socket.socket:
    """Listen at a path; replace the socket of an executor that has ended."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(path)
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE or _is_answered(path):
            raise
        Path(path).unlink()
        listener.bind(path)
    Path(path).chmod(0o666)  # the folder decides who may connect, and each process only speaks for itself
    listener.listen()
    return listener


def _finish(path: str) -> None:
    """Accept no more wills, and return when the wills that are being executed are sent."""
    Path(path).unlink(missing_ok=True)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def _why_not(path: str, problem: OSError) -> str:
    """Return an error for a path at which no process can listen, with the remedy."""
    folder = Path(path).parent
    if problem.errno == errno.EADDRINUSE:
        return "another executor listens there"
    if not folder.is_dir():
        return f"there is no folder {folder}; mount one that the applications have, too"
    if problem.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{problem.strerror}; user {os.geteuid()} must be able to write to the folder {folder}"
    return problem.strerror or str(problem)


def _is_answered(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def main(arguments: Sequence[str]) -> int:
    """Run the executor.

    Args:
        arguments: ``--socket NUMBER`` or ``--listen PATH``, then the folders to import from.
    """
    how, where, *folders = arguments
    sys.path[:0] = folders
    own = listener = None
    if how == "--socket":
        # A process that no one waits for: the application is not its parent, and need not ask for its status.
        if os.fork():
            return 0
        own = socket.socket(fileno=int(where))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_IGN)
    else:
        try:
            listener = _listen(where)
        except OSError as problem:
            print(f"cannot listen at unix:{where}: {_why_not(where, problem)}", file=sys.stderr)
            return 2
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that have ended
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each member needs two descriptors
    try:
        _import_parts()
    except ImportError as problem:
        if own is not None:
            own.send(FAILED + str(problem).encode()[:MAX_MESSAGE])
        raise
    executor = Executor(own, listener)
    if listener is not None:
        executor.stop_by_signals()
        _tell(f"last wills are accepted at unix:{where}")
    executor.run()
    if listener is not None:
        _finish(where)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
