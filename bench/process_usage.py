"""CPU and memory of running processes, from Linux's ``/proc``."""

import os
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from bench.frame import NotMeasured

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_POLL_S = 0.25
_TOLD = 2_000
"""Characters of a failed command's output that are shown."""


class Command(Struct, frozen=True, omit_defaults=True):
    """A command that has ended well, as a user starts it."""

    seconds: float
    """Time from its start to its end (s)."""
    memory_mib: float
    """Highest resident memory of all its processes together (MiB), pages that are shared included."""
    cpu_s: float = 0
    """CPU time of its processes (s), the start included; not of a JVM, for whose end nobody waits. 0: not measured."""


class CpuMeter:
    """The CPU time of a process, all of its threads, from now on."""

    def __init__(self, pid: int) -> None:
        """Begin.

        Raises:
            NotMeasured: it has ended, also later from `share`.
        """
        self._pid = pid
        self._began_s = time.monotonic()
        self._used_s = cpu_s(pid)

    def share(self) -> float:
        """Return the CPU time since the beginning as a share of one core."""
        return (cpu_s(self._pid) - self._used_s) / (time.monotonic() - self._began_s)


def run(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> Command:
    """Run a command to its end, and watch it.

    Args:
        argv: the program and its arguments.
        log: where its output goes, again.
        env: its whole environment.

    Raises:
        NotMeasured: its exit code is not 0.
    """
    highest = 0.0
    before, began_s = os.times(), time.monotonic()
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, env=env) as child:
        try:
            while (code := child.poll()) is None:
                highest = max(highest, _together_mib((child.pid, *descendants(child.pid))))
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            child.kill()  # it has ended, or whoever measures was stopped
        seconds = time.monotonic() - began_s
    if code != 0:
        told = log.read_text(encoding="utf-8", errors="replace")[-_TOLD:]
        raise NotMeasured(f"{' '.join(argv)} ended with {code}; it said:\n{told}")
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Command(round(seconds, 2), round(highest, 1), round(used_s, 1))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (MiB).

    Raises:
        NotMeasured: it has ended.
    """
    for line in _told(pid, "status").splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return round(int(value.split()[0]) / 1024, 1)
    raise NotMeasured(f"process {pid} has ended")


def cpu_s(pid: int) -> float:
    """Return user and system time of a process (s)."""
    after_name = _told(pid, "stat").rpartition(")")[2].split()
    user, system = after_name[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def threads(pid: int) -> int:
    """Return the number of threads of a process.

    Raises:
        NotMeasured: it has ended.
    """
    return next(int(line.split()[1]) for line in _told(pid, "status").splitlines() if line.startswith("Threads:"))


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and theirs: pid -> the name of its program.

    Raises:
        NotMeasured: the system is not Linux.
    """
    if not Path("/proc").is_dir():
        raise NotMeasured("this system has no /proc, from which CPU and memory are read; it must be Linux")
    found: dict[int, str] = {}
    processes = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    parents = {child: _parent_and_name(child) for child in processes}
    new = {pid}
    while new:
        new = {child for child, (parent, _) in parents.items() if parent in new}
        found |= {child: parents[child][1] for child in new}
    return found


def written_bytes(pid: int) -> int:
    """Return how many bytes a process has passed to the kernel, for files and connections."""
    lines = dict(line.split(": ") for line in _told(pid, "io").splitlines())
    return int(lines["wchar"])


def _together_mib(pids: Iterable[int]) -> float:
    """Return the resident memory of processes (MiB); those that have ended meanwhile have none."""
    total = 0.0
    for pid in pids:
        with suppress(NotMeasured):
            total += resident_mib(pid)
    return total


def _parent_and_name(pid: int) -> tuple[int, str]:
    """Return the parent of a process and the name of its program; 0 and nothing if it has ended."""
    try:
        before, _, after = _told(pid, "stat").rpartition(")")
    except NotMeasured:
        return 0, ""
    return int(after.split()[1]), before.partition("(")[2]


def _told(pid: int, name: str) -> str:
    """Return a file of the kernel about a process."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise NotMeasured(f"process {pid} has ended") from None
