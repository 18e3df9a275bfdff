"""The processes of a soak: each that ends is started again, as a service manager would do."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from wakeroll_pipeline.local.child_process import Child

STARTING_S = 240.0
"""A process that was started less than this long before a fault of the broker may not be connected yet (s).

At a load of 20, `run` needs three minutes for its start."""
_POLL_S = 0.1


class SoakProcesses:
    """Named child processes that should run; a thread starts those again that have ended. Any thread may call it."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        """All that were ever started, in the order of their first start."""
        self.ended: list[str] = []
        """Processes that have ended although nothing was done to them, or not with 0 when they were stopped."""
        self._excused: set[str] = set()
        self._stopped: set[str] = set()
        self._suspended: set[str] = set()
        self._started_s: dict[str, float] = {}
        """When each process was last started, by the monotonic clock."""
        self._outage_s = (-math.inf, -math.inf)
        """Begin and end of the broker's last outage, by the monotonic clock."""
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="soak-processes", daemon=True)
        self._thread.start()

    def launch(self, name: str, child: Child) -> None:
        """Start a process, and keep it running from now on."""
        with self._lock:
            self.children[name] = child
            self._start(name)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Let the broker be away during the block: a process that starts meanwhile may end, and is started again.

        It ends because no broker answers; one that is connected must wait for the broker.
        """
        with self._lock:
            self._outage_s = (time.monotonic(), math.inf)
        try:
            yield
        finally:
            with self._lock:
                self._outage_s = (self._outage_s[0], time.monotonic())

    def wanted(self, prefix: str = "") -> list[str]:
        """Return the names of the processes that should run and whose names begin so."""
        with self._lock:
            return [name for name in self.children if name.startswith(prefix) and name not in self._stopped]

    def kill(self, name: str) -> None:
        """Kill a process with all that belongs to it (SIGKILL); it is started again."""
        with self._lock:
            self._excused.add(name)
            self._suspended.discard(name)
            self.children[name].kill()

    def suspend(self, name: str, *, may_end: bool) -> None:
        """Suspend a process with all that belongs to it (SIGSTOP); `may_end`: it may end when it continues."""
        with self._lock:
            if may_end:
                self._excused.add(name)
            self._suspended.add(name)
            self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Let a process continue if it is suspended."""
        with self._lock:
            if name in self._suspended:
                self._suspended.discard(name)
                self._signal(name, signal.SIGCONT)

    def wake_all(self) -> None:
        """Let all suspended processes continue."""
        with self._lock:
            for name in list(self._suspended):
                self.wake(name)

    def stop(self, name: str) -> None:
        """Stop a process in good order, and leave it so."""
        with self._lock:
            self._stopped.add(name)
            self.wake(name)
        code = self.children[name].stop()
        if code != 0:
            self.ended.append(f"{name} ended with {code} when it was stopped")

    def end_all(self) -> None:
        """End all processes at once, the last one first: those that must end in good order were stopped before."""
        self._closed.set()
        self._thread.join()
        for child in reversed(self.children.values()):
            child.kill()

    def _supervise(self) -> None:
        while not self._closed.wait(_POLL_S):
            for name in self.wanted():
                with self._lock:
                    if name not in self._stopped and not self.children[name].is_running:
                        self._start_again(name)

    def _start_again(self, name: str) -> None:
        """Start a process that has ended, and note it if it ended by itself."""
        child = self.children[name]
        if name not in self._excused and not self._started_in_outage(name):
            self.ended.append(f"{name} ended with {child.returncode}; see {child.log}")
            print(f"{self.ended[-1]}:\n{child.log_tail()}", flush=True)
        self._excused.discard(name)
        self._suspended.discard(name)
        self._start(name)

    def _start(self, name: str) -> None:
        self._started_s[name] = time.monotonic()
        self.children[name].start()

    def _started_in_outage(self, name: str) -> bool:
        begin_s, end_s = self._outage_s
        return begin_s - STARTING_S <= self._started_s[name] <= end_s

    def _signal(self, name: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.children[name].pid, number)
