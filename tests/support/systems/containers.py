"""Podman for tests: an image that is built from the checkout, and containers of it with as few rights as possible."""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.running_processes import ROOT, run_process

WHY_NOT = None if shutil.which("podman") else "podman is not installed (Debian packages podman, runc)"
IMAGE = "WAKEROLL_IMAGE"
"""Environment variable with the name of an image to test, instead of one that is built for the test."""
PROGRAMS = Path(sys.executable).parent
"""Where pip puts the programs of this environment."""
OUR_BASE = "localhost/wakeroll-test-base"
STRICT = (
    *("--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--memory", "3g"),
    *("--tmpfs", "/tmp", "--network", "host"),
)
"""Options under which each role must work; the network is that of the test's broker."""

# A kernel without cgroups v2, and limits that a container's root may not raise, need a configuration of their own.
_OLD_CGROUPS = """
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


class Podman:
    """The program podman with a configuration that works here, and the containers of a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment: dict[str, str] = {}
        if not Path("/sys/fs/cgroup/cgroup.controllers").exists():
            configuration = folder / "containers.conf"
            configuration.write_text(_OLD_CGROUPS, encoding="utf-8")
            self._environment["CONTAINERS_CONF"] = str(configuration)
        self._containers: list[str] = []
        self.volume = f"wakeroll-test-{uuid.uuid4().hex[:8]}"

    def __call__(self, *words: object, is_checked: bool = True) -> subprocess.CompletedProcess[str]:
        """Run podman; without `is_checked`, a failure is the caller's affair."""
        # Out of memory, its monitor leaves a file in its working directory.
        done = run_process(["podman", *map(str, words)], folder=self._folder, **self._environment)
        assert done.returncode == 0 or not is_checked, f"podman {words[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def compose(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run podman-compose on the file in deploy/, in a project of this test."""
        given = ["--file", ROOT / "deploy" / "compose.yaml", "--project-name", self.volume]
        done = run_process([PROGRAMS / "podman-compose", *given, *words], **self._environment, **environment)
        assert done.returncode == 0, f"podman-compose {words[0]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done

    def build(self, *, changed: str = "") -> str:
        """Return the name of the image to test; build it if none is named.

        Args:
            changed: a file of the project that has one more line in this image, as in a release; empty: none.
        """
        if named := os.environ.get(IMAGE):
            return named
        name, source = "localhost/wakeroll:test", ROOT
        base = ["--build-arg", f"BASE={self._base()}"] if os.geteuid() == 0 and shutil.which("mmdebstrap") else []
        if changed:
            name, source = f"{name}-changed", self._folder / "changed"
            subprocess.run(["git", "clone", "--quiet", ROOT, source], check=True)
            with (source / changed).open("a", encoding="utf-8") as file:
                file.write("# one more line\n")
            author = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
            subprocess.run(["git", "-C", source, *author, "commit", "-qam", "Add a line"], check=True)
        script = [source / "deploy" / "container" / "build.sh", "--network", "host", "--tag", name, *base]
        done = run_process(script, **{"BUILDER": "podman", **self._environment})
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        return name

    def start(self, image: str, *command: str, environment: Mapping[str, str]) -> str:
        """Start a process of the image with the volume of this test; return the name of its container."""
        name = f"wakeroll-test-{command[0]}-{uuid.uuid4().hex[:8]}"
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        self._containers.append(name)
        where = ["--volume", f"{self.volume}:/var/lib/wakeroll"]
        self("run", "--detach", "--name", name, *STRICT, *where, *variables, image, *command)
        return name

    def start_here(self, *command: object, folder: Path, environment: Mapping[str, str], options: Sequence[str]) -> str:
        """Start a program of this machine as process 1 of a container; return the name of that.

        Its root is a copy of this machine's, which needs no image. `folder` is the only folder that it shares.
        """
        name = f"wakeroll-test-{uuid.uuid4().hex[:8]}"
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        self._containers.append(name)
        given = [
            "--detach",
            "--name",
            name,
            "--network",
            "host",
            "--volume",
            f"{folder}:{folder}",
            *variables,
            *options,
        ]
        self("run", *given, "--rootfs", "/:O", *command)
        return name

    def logs(self, container: str) -> str:
        """Return what a container has written to standard output and standard error."""
        done = self("logs", container)
        return done.stdout + done.stderr

    def descriptors(self, container: str, kind: str) -> int:
        """Return how many descriptors of a kind, such as ``pidfd``, process 1 of a container has."""
        pid = self("inspect", "--format", "{{.State.Pid}}", container).stdout.strip()
        return sum(str(file.readlink()) == f"anon_inode:[{kind}]" for file in Path(f"/proc/{pid}/fd").iterdir())

    def stop(self, container: str, grace_s: int) -> int:
        """Stop a container by SIGTERM, and by SIGKILL after the grace period; return the exit code of its process."""
        self("stop", "--time", grace_s, container)
        return int(self("inspect", "--format", "{{.State.ExitCode}}", container).stdout)

    def _base(self) -> str:
        """Return an image of Debian made from this machine's package sources: a test needs no registry of images."""
        if self("image", "exists", OUR_BASE, is_checked=False).returncode == 0:
            return OUR_BASE
        archive = self._folder / "base.tar"
        sources = sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))
        authorities = "/usr/local/share/ca-certificates"
        hooks: Sequence[str] = (
            f"--customize-hook=copy-in {authorities} /usr/local/share",
            '--customize-hook=chroot "$1" update-ca-certificates',
        )
        packages = "--include=ca-certificates"
        made = ["mmdebstrap", "--variant=minbase", packages, *hooks, "bookworm", archive, *sources]
        done = run_process(made)
        assert done.returncode == 0, done.stderr[-3000:]
        self("import", archive, OUR_BASE)
        archive.unlink()
        return OUR_BASE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for container in reversed(self._containers):  # one may share the namespaces of an earlier one
            self("rm", "--force", "--time", 0, container, is_checked=False)
        self("volume", "rm", "--force", self.volume, is_checked=False)
