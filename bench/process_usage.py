"""CPU and memory of a running process, from Linux's ``/proc``."""

import os
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """The CPU time of a process, all of its threads, from now on."""

    def __init__(self, pid: int) -> None:
        """Begin."""
        self._pid = pid
        self._began_s = time.monotonic()
        self._used_s = _cpu_s(pid)

    def share(self) -> float:
        """Return the CPU time since the beginning as a share of one core."""
        return (_cpu_s(self._pid) - self._used_s) / (time.monotonic() - self._began_s)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process (MiB)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition(":")
        if name == "VmRSS":
            return round(int(value.split()[0]) / 1024, 1)
    raise ProcessLookupError(f"process {pid} has ended")


def _cpu_s(pid: int) -> float:
    """Return user and system time of a process (s)."""
    after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    user, system = after_name[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S
