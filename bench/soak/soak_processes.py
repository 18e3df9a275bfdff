"""The processes of a soak: each that ends is started again, as a service manager would do."""

import os
import signal
from contextlib import suppress

from pipeline.local.child_process import Child


class SoakProcesses:
    """Named child processes that should run."""

    def __init__(self) -> None:
        self.children: dict[str, Child] = {}
        """All that were ever started, in the order of their first start."""
        self.ended: list[str] = []
        """Processes that have ended although nothing was done to them, or not with 0 when they were stopped."""
        self._excused: set[str] = set()
        self._stopped: set[str] = set()
        self._suspended: set[str] = set()

    def launch(self, name: str, child: Child) -> None:
        """Start a process, and keep it running from now on."""
        self.children[name] = child
        child.start()

    def wanted(self, prefix: str = "") -> list[str]:
        """Return the names of the processes that should run and whose names begin so."""
        return [name for name in self.children if name.startswith(prefix) and name not in self._stopped]

    def kill(self, name: str) -> None:
        """Kill a process with all that belongs to it (SIGKILL); `supervise` starts it again."""
        self._excused.add(name)
        self._suspended.discard(name)
        self.children[name].kill()

    def suspend(self, name: str, *, may_end: bool) -> None:
        """Suspend a process with all that belongs to it (SIGSTOP); `may_end`: it may end when it continues."""
        if may_end:
            self._excused.add(name)
        self._suspended.add(name)
        self._signal(name, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        """Let a process continue if it is suspended."""
        if name in self._suspended:
            self._suspended.discard(name)
            self._signal(name, signal.SIGCONT)

    def wake_all(self) -> None:
        """Let all suspended processes continue."""
        for name in list(self._suspended):
            self.wake(name)

    def stop(self, name: str) -> None:
        """Stop a process in good order, and leave it so."""
        self._stopped.add(name)
        self.wake(name)
        code = self.children[name].stop()
        if code != 0:
            self.ended.append(f"{name} ended with {code} when it was stopped")

    def supervise(self) -> None:
        """Start processes that have ended again, and note those that ended by themselves."""
        for name in self.wanted():
            child = self.children[name]
            if child.is_running:
                continue
            if name not in self._excused:
                self.ended.append(f"{name} ended with {child.returncode}; see {child.log}")
                print(f"{self.ended[-1]}:\n{child.log_tail()}", flush=True)
            self._excused.discard(name)
            self._suspended.discard(name)
            child.start()

    def end_all(self) -> None:
        """End all processes at once, the last one first: those that must end in good order were stopped before."""
        for child in reversed(self.children.values()):
            child.kill()

    def _signal(self, name: str, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.children[name].pid, number)
