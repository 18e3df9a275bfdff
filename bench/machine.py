"""The machine of a measurement, and whether it was idle otherwise."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from wakeroll_pipeline.prerequisites import java_path

QUIET_LOAD = 1.0
"""With a higher load average at the start, somebody else was at work, and the figures do not count."""


class Machine(Struct, frozen=True):
    """What ran the measurements, and when."""

    measured: str
    """Day, UTC."""
    cpus: int
    cpu_model: str
    memory_gib: float
    system: str
    python: str
    java: str
    load: float
    """Average of the last minute, just before the first measurement."""

    @property
    def sentence(self) -> str:
        """The machine in a few words."""
        memory = f"{self.memory_gib:g} GiB"
        return f"{self.cpus} x {self.cpu_model}, {memory}, {self.system}, {self.python}, {self.java}"

    @property
    def sentence_with_load(self) -> str:
        """The machine in a few words, and how much it had to do before the measurement."""
        return f"{self.sentence}; load average at the start {self.load:g}."

    @property
    def is_quiet(self) -> bool:
        """Whether nobody else was at work."""
        return self.load < QUIET_LOAD


def this_machine() -> Machine:
    """Describe this machine as it is now."""
    return Machine(
        measured=datetime.now(UTC).date().isoformat(),
        cpus=os.cpu_count() or 0,
        cpu_model=_cpu_model(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        java=_java(),
        load=round(os.getloadavg()[0], 2),
    )


def _cpu_model() -> str:
    """Return the processor's name as Linux has it; elsewhere, what Python knows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8", errors="replace").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _java() -> str:
    """Return the version of the Java that the broker would use, in its own words."""
    java = java_path()
    if java is None:
        return "none"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return said[0] if said else "unknown"
