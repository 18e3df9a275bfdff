"""Checks whether a machine fulfils wakeroll's requirements, before anything is installed on it.

`make` runs this module as a plain script with the `python3` that it finds, which may be too old.  So the module imports
the standard library only, and parses and runs on Python 3.6; types are quoted, because Python 3.6 cannot evaluate
`str | None`.  `wakeroll doctor` calls the same functions.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

PYTHON = (3, 11)
JAVA = 17
ENVIRONMENT_GB = 1.2
JARS_GB = 0.35
DISK_GB = 3.0
"""Free disk space needed (GB): the environment, the JARs and their classes, pip's build of PySpark, and data."""
MEMORY_GIB = 3.0
"""Memory needed (GiB): a broker (0.3), a Spark driver with its Python workers (1.8), the observer, a few clients."""


class Check(NamedTuple):
    """One requirement: whether it is met, the finding, and the remedy ("" if it is met)."""

    name: str
    ok: bool
    found: str
    fix: str


def main() -> int:
    """Print one line per requirement that is not met; return 1 if there is one, else 0."""
    failed = [check for check in checks(Path.cwd()) if not check.ok]
    for check in failed:
        print(f"{check.name}: {check.found}; {check.fix}.", file=sys.stderr)
    return 1 if failed else 0


def checks(folder: Path) -> "list[Check]":
    """Run all checks, for an environment and data in `folder`."""
    return [check_python(), check_java(), check_disk(folder), check_memory()]


def check_python() -> Check:
    """Check the version of this interpreter, and that it can make a virtual environment with pip."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = f"Python {version} ({sys.executable})"
    if sys.version_info[:2] < PYTHON:
        fix = "install Python {}.{} or newer, or name one: make PYTHON=/path/to/python3".format(*PYTHON)
        return Check("python", False, found, fix)
    lacking = [name for name in ("venv", "ensurepip") if not _importable(name)]
    if lacking:
        fix = f"add it (on Debian: apt install python{version}-venv), or name another: make PYTHON=/path/to/python3"
        return Check("python", False, f"{found} lacks its module {' and '.join(lacking)}", fix)
    return Check("python", True, found, "")


def check_java() -> Check:
    """Check the version of the Java that Spark and the embedded broker use."""
    home = os.environ.get("JAVA_HOME", "")
    java = java_path()
    if java is None and home:
        fix = f"set JAVA_HOME to a Java {JAVA} or newer, or unset it"
        return Check("java", False, f"JAVA_HOME is {home}, but there is no bin/java in it", fix)
    install = f"install a Java {JAVA} or newer (a JRE is enough)"
    if java is None:
        return Check("java", False, "there is no java on PATH", install)
    where = f"{java}, from {'JAVA_HOME' if home else 'PATH'}"
    version = java_version(java)
    if version is None:
        return Check("java", False, f"{where}, does not report its version", install)
    if version < JAVA:
        fix = f"{install} and set JAVA_HOME to it: it wins over PATH"
        return Check("java", False, f"Java {version} ({where})", fix)
    return Check("java", True, f"Java {version} ({where})", "")


def check_disk(folder: Path) -> Check:
    """Check the free space of the file system of `folder`."""
    free = shutil.disk_usage(str(folder)).free / 1e9
    found = f"{free:.1f} GB are free in {folder}"
    if free < DISK_GB:
        need = f"environment {ENVIRONMENT_GB}, JARs {JARS_GB}, the rest for building and data"
        return Check("disk", False, found, f"free some more: {DISK_GB:.0f} GB are needed ({need})")
    return Check("disk", True, found, "")


def check_memory() -> Check:
    """Check the memory that is available to this process; pass if the system does not report it."""
    available = available_memory()
    if available is None:
        return Check("memory", True, "this system does not report its available memory", "")
    gib = available / 2**30
    found = f"{gib:.1f} GiB are available"
    if gib < MEMORY_GIB:
        fix = f"end other programs, or give the container more: {MEMORY_GIB:.0f} GiB are needed"
        return Check("memory", False, found, fix)
    return Check("memory", True, found, "")


def java_path() -> "str | None":
    """Return the path of the java that Spark will run, or None; JAVA_HOME precedes PATH, even if it is wrong."""
    home = os.environ.get("JAVA_HOME", "")
    return shutil.which(str(Path(home, "bin", "java")) if home else "java")


def java_version(java: str) -> "int | None":
    """Return the feature release of a java, such as 8 for "1.8.0_392"; None if it does not start or report one."""
    try:
        # `--version` is unknown to Java 8; `-version` writes to the error output in all of them.
        answer = subprocess.run([java, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stdout.decode("utf-8", "replace"))
    return int(version.group(1)) if version else None


def available_memory(root: Path = Path("/")) -> "int | None":
    """Return the available memory in bytes: that of the machine, or of the control group (cgroup) if it is less.

    Args:
        root: the folder that holds `proc` and `sys`; tests pass another one.

    Returns:
        The bytes; None if the system reports neither (macOS).
    """
    kernel = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    amounts = [int(kernel.group(1)) * 1024] if kernel else []
    for group in _memory_groups(root):
        limit = _limit(group)
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            # The page cache counts as used, but the kernel frees it when a process needs memory.
            cache = re.search(r"^(?:total_)?inactive_file (\d+)", _read(group / "memory.stat"), re.MULTILINE)
            amounts.append(max(0, int(limit) - int(used) + (int(cache.group(1)) if cache else 0)))
    return min(amounts) if amounts else None


def memory_limit(root: Path = Path("/")) -> "int | None":
    """Return the smallest limit (bytes) of a control group that this process is in; None if there is none.

    Args:
        root: the folder that holds `proc` and `sys`; tests pass another one.
    """
    limits = []
    for group in _memory_groups(root):
        limit = _limit(group)
        if limit.isdigit() and int(limit) < 2**60:  # version 1 has a number near 2^63 where there is no limit
            limits.append(int(limit))
    return min(limits) if limits else None


def _limit(group: Path) -> str:
    """Return the limit of a memory group as written by the kernel; without a limit, version 2 has "max"."""
    return _read(group / "memory.max") or _read(group / "memory.limit_in_bytes")  # of version 2, of version 1


def _memory_groups(root: Path) -> "list[Path]":
    """Return the folders of this process's memory group and of its parents: a limit on any of them applies."""
    folders = [root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"]
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder = folders[1] if controllers else folders[0]
        for part in path.split("/"):
            # A container may see its group's path on the host as "/../.."; its own group is then at the top.
            if part not in ("", ".."):
                folder = folder / part
                folders.append(folder)
    return folders


def _importable(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def _read(path: Path) -> str:
    """Return the text of a small file, without leading and trailing white space; "" if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())
