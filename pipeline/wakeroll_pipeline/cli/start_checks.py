"""Checks of `doctor` for conditions that prevent a start on this machine: folders, disks, temporary folders, memory."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from wakeroll_pipeline.prerequisites import Check, memory_limit
from wakeroll_pipeline.settings import Settings

_JVM_TEMPORARY = re.compile(r"-Djava\.io\.tmpdir=(\S+)")
"""Option of Java for its temporary folder; by default it is /tmp on Linux, whatever TMPDIR says."""
LEAST_FREE = 0.1
"""Free share of a file system below which it counts as full; the alert `WakerollDiskSpace` has the same."""
ENOUGH_BYTES = 20e9
"""Free space that is enough for a start, even if it is a small share of a large file system."""
BESIDE_HEAP_MIB = 1_024
"""Memory of `run` in addition to the heap of its JVM (MiB): the rest of the JVM, the driver in Python, and its
workers."""


def start_checks(settings: Settings) -> Iterator[Check]:
    """Yield the checks of this machine: local folders, disks, the temporary folder, and the limit of memory."""
    set_by_option = _JVM_TEMPORARY.search(os.environ.get("JAVA_TOOL_OPTIONS", ""))
    jvm_temporary = Path(set_by_option[1] if set_by_option else "/tmp")
    places = {"home": settings.warehouse.parent, "checkpoints": settings.checkpoints_folder}
    folders = {name: place.path for name, place in places.items() if place.is_local}
    folders["work"] = settings.work_folder
    yield _folders(folders)
    yield _temporary({jvm_temporary, Path(tempfile.gettempdir())}, jvm_temporary)
    yield _space({**folders, "temporary": jvm_temporary})
    yield _limit(settings.driver_memory)


def _folders(folders: Mapping[str, Path]) -> Check:
    """Check that this user may write into each folder; into the nearest existing one above it, if it is missing."""
    problems = [problem for name, folder in folders.items() if (problem := _not_writable(name, folder))]
    if problems:
        user = f"user {os.geteuid()}"
        return Check(
            "folders", False, "; ".join(dict.fromkeys(problems)), f"run as the owner, or give the folder to {user}"
        )
    return Check("folders", True, f"can be written: {', '.join(str(folder) for folder in folders.values())}", "")


def _not_writable(name: str, folder: Path) -> str:
    """Return why a folder, or one of the folders in it, cannot be written; empty if all can."""
    root = _existing(folder)
    try:
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        return f"{name}: cannot write into {_owned(root)}: {error.strerror}"
    if root != folder:
        return ""
    # Tables and checkpoints that another user has made, such as root with `wakeroll maintain`.
    for inner in (*folder.glob("*/"), *folder.glob("*/*/")):
        if not os.access(inner, os.W_OK | os.X_OK, effective_ids=True):
            return f"{name}: cannot write into {_owned(inner)}"
    return ""


def _owned(folder: Path) -> str:
    return f"{folder}, which belongs to user {folder.stat().st_uid}"


def _temporary(folders: set[Path], jvm_temporary: Path) -> Check:
    """Check that files can be made in the temporary folders, and that those of the JVM may be executed."""
    for folder in sorted(folders):
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            return Check("temp", False, f"cannot write into {folder}: {error.strerror}", "mount a volume there")
    if os.statvfs(jvm_temporary).f_flag & os.ST_NOEXEC:
        return Check(
            "temp",
            False,
            f"{jvm_temporary} is mounted with noexec, and Spark loads native libraries from there",
            "mount it without noexec, or name another folder: JAVA_TOOL_OPTIONS=-Djava.io.tmpdir=FOLDER",
        )
    return Check("temp", True, f"files in {jvm_temporary} can be made and executed", "")


def _space(folders: Mapping[str, Path]) -> Check:
    """Check the free space of the file system of each folder."""
    found, full = [], []
    for name, folder in folders.items():
        usage = shutil.disk_usage(_existing(folder))
        text = f"{name} {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB"
        found.append(text)
        if usage.free < min(LEAST_FREE * usage.total, ENOUGH_BYTES):
            full.append(f"{text} at {folder}")
    if full:
        fix = f"free some: less than {LEAST_FREE:.0%} is left; docs/runbook.md, WakerollDiskSpace, has what may go"
        return Check("space", False, f"free: {', '.join(full)}", fix)
    return Check("space", True, f"free: {', '.join(found)}", "")


def _limit(driver_memory: str) -> Check:
    """Check that the limit of this process's control group has room for the heap of Spark's JVM and the rest."""
    limit = memory_limit()
    if limit is None:
        return Check("limit", True, "no limit of memory is set for this process", "")
    heap_mib = int(driver_memory[:-1]) * (1_024 if driver_memory.endswith("g") else 1)
    needed_mib, limit_mib = heap_mib + BESIDE_HEAP_MIB, limit >> 20
    found = f"the limit of memory is {limit_mib} MiB; `run` with driver_memory {driver_memory} needs {needed_mib}"
    if limit_mib < needed_mib:
        return Check("limit", False, found, "raise the limit, or lower driver_memory: else the kernel kills the JVM")
    return Check("limit", True, found, "")


def _existing(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(one for one in (folder, *folder.parents) if one.exists())
