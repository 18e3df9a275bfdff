"""The cost of processes: CPU and memory while they run, and of a command from its start to its end."""

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]
from msgspec import Struct

from bench.frame import NotMeasured

_POLL_S = 0.25
_SHOWN = 2_000
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
        self._used_s = self._cpu_s()

    def share(self) -> float:
        """Return the CPU time since the beginning as a share of one core."""
        return (self._cpu_s() - self._used_s) / (time.monotonic() - self._began_s)

    def _cpu_s(self) -> float:
        with _process(self._pid) as process:
            used = process.cpu_times()
        return float(used.user + used.system)


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
                highest = max(highest, _together_mib(child.pid))
                with suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            child.kill()  # it has ended, or whoever measures was stopped
        seconds = time.monotonic() - began_s
    if code != 0:
        told = log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:]
        raise NotMeasured(f"{' '.join(argv)} ended with {code}; it said:\n{told}")
    after = os.times()
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Command(round(seconds, 2), round(highest, 1), round(used_s, 1))


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (MiB).

    Raises:
        NotMeasured: it has ended.
    """
    with _process(pid) as process:
        return round(float(process.memory_info().rss) / 2**20, 1)


def _together_mib(pid: int) -> float:
    """Return the resident memory of a process and of those that it has started (MiB); of ended ones, none."""
    total = 0.0
    with suppress(NotMeasured), _process(pid) as first:
        for process in (first, *first.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += process.memory_info().rss / 2**20
    return total


@contextmanager
def _process(pid: int) -> Iterator[psutil.Process]:
    """Provide a process that runs; one that has ended and was not waited for counts as ended."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            raise psutil.NoSuchProcess(pid)
        yield process
    except psutil.NoSuchProcess:
        raise NotMeasured(f"process {pid} has ended") from None
