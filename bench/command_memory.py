"""Runs of commands as a user starts them: duration, and peak memory of their processes.

Memory is read from Linux's ``/proc`` while they run: the kernel keeps the highest resident size of each process.
"""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from bench.process_usage import descendants

_PROC = Path("/proc")
_POLL_S = 0.25
_TOLD = 2_000
"""Characters of a failed command's output that are shown."""


class Run(Struct, frozen=True):
    """A command that has ended well; sizes are resident memory at its highest, MiB, pages that are shared included."""

    seconds: float
    """From its start to its end."""
    jvm_mib: float
    command_mib: float
    """The Python that was started, with dbt or Great Expectations in it."""
    worker_mib: float
    """The largest of Spark's Python workers; 0: there were none."""
    together_mib: float
    """All of them at one moment: what is resident, added up."""


class CommandFailed(Exception):
    """A command that is measured ended badly; the message quotes the end of its output."""


def run(argv: Sequence[str], log: Path, env: Mapping[str, str]) -> Run:
    """Run a command to its end, and watch it.

    Args:
        argv: the program and its arguments.
        log: where its output goes, again.
        env: its whole environment.

    Raises:
        CommandFailed: its exit code is not 0.
    """
    highest: dict[int, tuple[str, float]] = {}
    together = 0.0
    began = time.monotonic()
    with log.open("wb") as file, subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, env=env) as child:
        while True:
            resident = 0.0
            for pid, name, highest_mib, resident_mib in _family(child.pid):
                resident += resident_mib
                highest[pid] = name, max(highest_mib, highest.get(pid, ("", 0.0))[1])
            together = max(together, resident)
            try:
                code = child.wait(_POLL_S)
                break
            except subprocess.TimeoutExpired:
                pass
        seconds = time.monotonic() - began
    if code != 0:
        told = log.read_text(encoding="utf-8", errors="replace")[-_TOLD:]
        raise CommandFailed(f"{' '.join(argv)} ended with {code}; it said:\n{told}")
    _, command = highest.pop(child.pid, ("", 0.0))
    return Run(
        seconds=round(seconds, 2),
        jvm_mib=max((mib for name, mib in highest.values() if name == "java"), default=0.0),
        command_mib=command,
        worker_mib=max((mib for name, mib in highest.values() if name.startswith("python")), default=0.0),
        together_mib=round(together, 1),
    )


def _family(first: int) -> Iterator[tuple[int, str, float, float]]:
    """Yield process, name, highest and present resident size (MiB) of a process and all its descendants."""
    for pid in (first, *descendants(first)):
        status = _status(_PROC / str(pid))
        if "VmHWM" in status:  # one that has ended has no memory
            yield pid, status["Name"], _mib(status["VmHWM"]), _mib(status["VmRSS"])


def _status(process: Path) -> dict[str, str]:
    """Return what the kernel says of a process; nothing, if it has ended meanwhile."""
    try:
        lines = (process / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _mib(text: str) -> float:
    """Return a size such as ``1024 kB``."""
    return round(int(text.split()[0]) / 1024, 1)
