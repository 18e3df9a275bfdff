"""A child process that ends when its parent does: the broker, the observer, consumers and Spark drivers on a laptop."""

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
    """A child that did not start, ended too early or was not ready in time; the message quotes the end of its log."""


class Child:
    """One process of ours, with a log file, stopped at the latest when this process ends, be it by SIGKILL.

    It runs in a session of its own: Ctrl-C reaches us, and we say who stops when.  A script beside this module stands
    between us and it (`parent_watchdog.py` says how that works).  Used in a `with` statement, it is started and
    stopped.  When nobody refers to this object any more, its process is stopped too.
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
            name: what messages call it.
            argv: the program and its arguments; no shell is involved.
            log: where its output is appended, made with its folder; once larger than 16 MiB, it is kept as `*.1`.
            env: its whole environment; without one, that of this process.
            folder: its working folder; without one, that of this process.
            grace_s: seconds between SIGTERM and SIGKILL, in `stop` and when this process is gone; children that it
                leaves behind have as long.
            pass_fds: open files that stay open until it has ended (a lock it stands for); it does not see them itself.
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
        """Start the process; it may well not be ready yet.

        Raises:
            ChildFailed: the program cannot be run.
        """
        assert not self.is_running, f"{self.name} runs already"
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
        told = self._guard.stdout.readline().decode().strip()
        if not told.isdigit():
            self._wait(self._grace_s)
            raise ChildFailed(f"{self.name} cannot be started: {told.removeprefix('error ') or self.log_tail()}")
        self._pid = int(told)

    def stop(self, timeout_s: float | None = None) -> int | None:
        """Ask the process to end (SIGTERM), make it end after `timeout_s` (default: its grace); return its exit code.

        Returns:
            Minus the signal that ended it, or None if it was never started.
        """
        self._order(b"t")
        if not self._wait(self._grace_s if timeout_s is None else timeout_s):
            return self.kill()
        return self.returncode

    def kill(self) -> int | None:
        """End the process and all of its process group at once (SIGKILL); return its exit code, usually -9."""
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
        """The exit code, as `poll` tells it."""
        return self.poll()

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._guard is not None and self.poll() is None

    @property
    def pid(self) -> int:
        """The process's own id, that of the last start."""
        assert self._pid is not None, f"{self.name} was not started"
        return self._pid

    def wait_until(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Ask `ready` again and again until it says yes.

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

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines that the process wrote since it was started."""
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
        """Wait for the end; return whether it has come."""
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
