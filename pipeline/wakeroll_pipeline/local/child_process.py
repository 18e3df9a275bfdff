"""Child processes that end when their parent does: broker, observer, consumers and Spark drivers on one machine."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from wakeroll.errors import WakerollError

_GUARD = Path(__file__).with_name("parent_watchdog.py")
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_POLL_S = 0.02


class ChildFailed(WakerollError):
    """A child did not start, ended too early or was not ready in time; the message quotes the end of its log."""


class Child:
    """A child process with a log file, stopped at the latest when this process ends, even by SIGKILL.

    The child has its own session: Ctrl-C reaches only this process, which stops its children in the right order. The
    script `parent_watchdog.py` runs between this process and the child; its docstring describes the protocol. A `with`
    statement starts and stops the child. When this object is garbage collected, the child is stopped too.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        folder: Path | None = None,
        grace_s: float = 10.0,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Describe a process without starting it.

        Args:
            name: name of the process in messages.
            argv: the program and its arguments; no shell is used.
            log: file for its output, appended and created with its folder; above 16 MiB it is renamed to `*.1`.
            env: complete environment; by default, that of this process.
            folder: working folder; by default, that of this process.
            grace_s: seconds between SIGTERM and SIGKILL, in `stop` and after the end of this process; also for children
                that the process leaves behind.
            pass_fds: file descriptors that stay open until the process has ended, such as a lock; the process itself
                does not inherit them.
        """
        self.name = name
        self.argv = tuple(argv)
        self.log = log
        self._env = env
        self._folder = folder
        self._grace_s = grace_s
        self._pass_fds = tuple(pass_fds)
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._log_start = 0

    def start(self) -> None:
        """Start the process, without waiting until it is ready.

        Raises:
            ChildFailed: the program cannot be run.
        """
        assert not self.is_running, f"{self.name} already runs"
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(self._grace_s)]
        with self._open_log() as log:
            self._log_start = log.tell()
            self._guard = subprocess.Popen(
                [*guard, *self.argv],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._env,
                cwd=self._folder,
                start_new_session=True,
                pass_fds=self._pass_fds,
            )
        assert self._guard.stdout is not None
        answer = self._guard.stdout.readline().decode().strip()
        if not answer.isdigit():
            self._wait(self._grace_s)
            raise ChildFailed(f"cannot start {self.name}: {answer.removeprefix('error ') or self.log_tail()}")
        self._pid = int(answer)

    def stop(self, timeout_s: float | None = None) -> int | None:
        """Stop the process with SIGTERM, and with SIGKILL after `timeout_s` (default: its grace).

        Returns:
            The exit code; minus the signal that ended the process; None if it was never started.
        """
        self._order(b"t")
        if not self._wait(self._grace_s if timeout_s is None else timeout_s):
            return self.kill()
        return self.returncode

    def kill(self) -> int | None:
        """Kill the process and its whole process group (SIGKILL); return its exit code, usually -9."""
        self._order(b"k")
        if not self._wait(self._grace_s) and self._guard:
            self._guard.kill()
            self._guard.wait()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs or if it was never started."""
        return self._guard.returncode if self._guard and self._wait(0) else None

    @property
    def returncode(self) -> int | None:
        """The exit code, as `poll` returns it."""
        return self.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._guard is not None and self.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process, from its last start."""
        assert self._pid is not None, f"{self.name} was not started"
        return self._pid

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Call `ready` repeatedly until it returns true.

        Raises:
            ChildFailed: the process ended first, or `timeout_s` seconds have passed.
        """
        deadline = time.monotonic() + timeout_s
        while not ready():
            if not self.is_running:
                raise ChildFailed(f"{self.name} ended with code {self.returncode}; {self._quoted_log()}")
            if time.monotonic() > deadline:
                raise ChildFailed(f"{self.name} was not ready within {timeout_s:g} s; {self._quoted_log()}")
            time.sleep(_POLL_S)

    def check(self) -> None:
        """Raise `ChildFailed` if the process has ended by itself; the message has its log and the last line of it."""
        if not self.is_running:
            last = self.log_tail(lines=1)
            why = f", which ends with:\n{last}" if last else ""
            raise ChildFailed(f"{self.name} ended with code {self.returncode}; see {self.log}{why}")

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that the process wrote since its start."""
        with self.log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - 64 * 1024))
            return "\n".join(log.read().decode("utf-8", "replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _order(self, order: bytes) -> None:
        if self.is_running:
            assert self._guard is not None
            assert self._guard.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.write(order)

    def _wait(self, timeout_s: float) -> bool:
        """Wait for the end of the process; return whether it has ended."""
        if self._guard is None:
            return True
        try:
            self._guard.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        for pipe in (self._guard.stdin, self._guard.stdout):
            assert pipe is not None
            pipe.close()
        return True

    def _open_log(self) -> BinaryIO:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT_BYTES:
            self.log.replace(self.log.with_name(f"{self.log.name}.1"))
        return self.log.open("ab")

    def _quoted_log(self) -> str:
        return f"the end of {self.log}:\n{self.log_tail()}"
