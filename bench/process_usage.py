"""CPU and memory of a running process, from Linux's ``/proc``."""

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessEnded(Exception):
    """A process that is measured has ended."""


class CpuMeter:
    """The CPU time of a process, all of its threads, from now on."""

    def __init__(self, pid: int) -> None:
        """Begin.

        Raises:
            ProcessEnded: it has ended, also later from `share`.
        """
        self._pid = pid
        self._began_s = time.monotonic()
        self._used_s = cpu_s(pid)

    def share(self) -> float:
        """Return the CPU time since the beginning as a share of one core."""
        return (cpu_s(self._pid) - self._used_s) / (time.monotonic() - self._began_s)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (MiB).

    Raises:
        ProcessEnded: it has ended.
    """
    for line in _told(pid, "status").splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return round(int(value.split()[0]) / 1024, 1)
    raise ProcessEnded(f"process {pid} has ended")


def cpu_s(pid: int) -> float:
    """Return user and system time of a process (s)."""
    after_name = _told(pid, "stat").rpartition(")")[2].split()
    user, system = after_name[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and theirs: pid -> the name of its program."""
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


def _parent_and_name(pid: int) -> tuple[int, str]:
    """Return the parent of a process and the name of its program; 0 and nothing if it has ended."""
    try:
        before, _, after = _told(pid, "stat").rpartition(")")
    except ProcessEnded:
        return 0, ""
    return int(after.split()[1]), before.partition("(")[2]


def _told(pid: int, name: str) -> str:
    """Return a file of the kernel about a process."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessEnded(f"process {pid} has ended") from None
