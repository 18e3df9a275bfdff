"""What is checked before anything is installed: on real files, with a real (if short) java."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from wakeroll_pipeline import prerequisites
from wakeroll_pipeline.prerequisites import (
    Check,
    available_memory,
    check_disk,
    check_java,
    check_memory,
    check_python,
    checks,
    java_version,
    memory_limit,
)

SCRIPT = Path(prerequisites.__file__)
GIB = 2**30


def test_this_machine_will_do():
    """It runs these tests, after all."""
    assert [check.name for check in checks(Path.cwd()) if not check.ok] == []


def test_it_runs_on_a_python_that_is_too_old():
    """Whoever has Python 3.6 must read what to do about it, and not a SyntaxError."""
    ast.parse(SCRIPT.read_text(), feature_version=(3, 6))
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }

    assert imported <= sys.stdlib_module_names


def test_a_python_that_is_too_old_is_named(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 6, 9, "final", 0))

    assert check_python() == Check(
        "python",
        False,
        f"Python 3.6 ({sys.executable})",
        "install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3",
    )


def test_a_python_without_venv_names_the_package(monkeypatch):
    """Debian leaves them out of Python, and says so only after half of the work."""
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"

    check = check_python()

    assert check.found == f"Python {version} ({sys.executable}) lacks its module ensurepip"
    assert f"apt install python{version}-venv" in check.fix


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_392"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25-ea" 2025-09-16', 25),
        ("Unable to locate a Java Runtime.", None),
    ],
)
def test_a_java_s_version_is_read(tmp_path, said, version):
    """The last one is what macOS has in /usr/bin before anybody installs a Java."""
    assert java_version(str(java_that_says(tmp_path, said))) == version


def test_java_home_wins_over_path(tmp_path, monkeypatch):
    """As it does for Spark; to look at PATH alone would find a good java and then run the other one."""
    java = java_that_says(tmp_path / "old" / "bin", 'java version "1.8.0_392"')
    monkeypatch.setenv("PATH", str(java_that_says(tmp_path, 'openjdk version "21"').parent))
    monkeypatch.setenv("JAVA_HOME", "")
    by_path = check_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    assert by_path == Check("java", True, f"Java 21 ({tmp_path}/java, from PATH)", "")
    assert check_java() == Check(
        "java",
        False,
        f"Java 8 ({java}, from JAVA_HOME)",
        "install a Java 17 or newer (a JRE is enough) and set JAVA_HOME to it: it wins over PATH",
    )


def test_a_broken_java_home_and_no_java_are_two_things(tmp_path, monkeypatch):
    """The first is mended by a variable, the second by an installation."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "/gone")
    broken = check_java()
    monkeypatch.delenv("JAVA_HOME")

    assert broken.found == "JAVA_HOME is /gone, but there is no bin/java in it"
    assert broken.fix == "set JAVA_HOME to a Java 17 or newer, or unset it"
    assert check_java() == Check(
        "java", False, "there is no java on PATH", "install a Java 17 or newer (a JRE is enough)"
    )


def test_too_little_disk_says_how_much_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(prerequisites, "DISK_GB", 1e9)

    check = check_disk(tmp_path)

    assert not check.ok
    assert check.found.endswith(f" GB are free in {tmp_path}")
    assert check.fix == (
        "free some more: 1000000000 GB are needed (environment 1.2, JARs 0.35, the rest for building and data)"
    )


def test_too_little_memory_says_how_much_is_needed(monkeypatch):
    monkeypatch.setattr(prerequisites, "MEMORY_GIB", 1e6)

    check = check_memory()

    assert not check.ok
    assert check.fix == "end other programs, or give the container more: 1000000 GiB are needed"


def test_memory_is_what_the_kernel_says_without_a_limit(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    8388608 kB\n", "proc/self/cgroup": "0::/user"})
    write(tmp_path, {"sys/fs/cgroup/user/memory.max": "max", "sys/fs/cgroup/user/memory.current": "1"})

    assert available_memory(tmp_path) == 8 * GIB


def test_the_limit_of_a_container_counts(tmp_path):
    """A container sees all of the machine's memory in /proc/meminfo, and is killed for using it."""
    group = "sys/fs/cgroup/pod/me"
    write(tmp_path, {"proc/meminfo": "MemAvailable: 8388608 kB", "proc/self/cgroup": "0::/pod/me"})
    write(tmp_path, {f"{group}/memory.max": f"{3 * GIB}\n", f"{group}/memory.current": f"{2 * GIB}\n"})
    write(tmp_path, {f"{group}/memory.stat": f"anon 1\ninactive_file {GIB}\nactive_file 5\n"})

    assert available_memory(tmp_path) == 2 * GIB


def test_a_limit_on_a_group_around_ours_counts(tmp_path):
    """A pod's limit is set on the group above the container's."""
    write(tmp_path, {"proc/self/cgroup": "0::/pod/me", "sys/fs/cgroup/pod/memory.max": str(2 * GIB)})
    write(tmp_path, {"sys/fs/cgroup/pod/memory.current": str(GIB), "sys/fs/cgroup/pod/me/memory.max": "max"})

    assert available_memory(tmp_path) == GIB


def test_version_1_of_control_groups_counts_too(tmp_path):
    """And its container sees its own group at the top, under a path that only the machine outside knows."""
    write(
        tmp_path,
        {"proc/self/cgroup": "5:cpu:/docker/1\n4:memory:/docker/1\n", "proc/meminfo": "MemAvailable: 9999999 kB"},
    )
    group = "sys/fs/cgroup/memory"
    write(tmp_path, {f"{group}/memory.limit_in_bytes": str(4 * GIB), f"{group}/memory.usage_in_bytes": str(3 * GIB)})
    write(tmp_path, {f"{group}/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n"})

    assert available_memory(tmp_path) == 2 * GIB - (GIB - 7)


def test_the_smallest_limit_around_a_process_counts(tmp_path):
    write(tmp_path, {"proc/self/cgroup": "4:memory:/pod/me\n"})
    group = "sys/fs/cgroup/memory"
    write(tmp_path, {f"{group}/memory.limit_in_bytes": "9223372036854771712"})
    assert memory_limit(tmp_path) is None

    write(tmp_path, {f"{group}/pod/memory.limit_in_bytes": str(2 * GIB)})
    write(tmp_path, {f"{group}/pod/me/memory.limit_in_bytes": str(3 * GIB)})
    assert memory_limit(tmp_path) == 2 * GIB


def test_a_system_that_does_not_tell_is_not_refused(tmp_path):
    """MacOS has no /proc."""
    assert available_memory(tmp_path) is None


def test_all_that_is_wrong_is_said_at_once(tmp_path):
    """Nobody wants to install one thing, start again, and be told of the next."""
    program = (
        "import runpy, shutil, sys; sys.version_info = (3, 9, 2); "
        "shutil.disk_usage = lambda _: type('Usage', (), {'free': 1e9}); "
        "runpy.run_path(sys.argv[1], run_name='__main__')"
    )
    environment = {"PATH": str(tmp_path), "JAVA_HOME": "/gone"}
    answer = subprocess.run(
        [sys.executable, "-c", program, str(SCRIPT)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.splitlines() == [
        f"python: Python 3.9 ({sys.executable}); "
        "install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3.",
        "java: JAVA_HOME is /gone, but there is no bin/java in it; set JAVA_HOME to a Java 17 or newer, or unset it.",
        f"disk: 1.0 GB are free in {tmp_path}; "
        "free some more: 3 GB are needed (environment 1.2, JARs 0.35, the rest for building and data).",
    ]


def java_that_says(folder: Path, text: str) -> Path:
    """Make a `java` that prints its version where a real one does."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    java.chmod(0o755)
    return java


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
