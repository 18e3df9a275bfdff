"""Release 0.1 from this repository's history, as processes on the same libraries and JARs."""

import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from tests.support.running_processes import ROOT
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_paths import SPARK, our_jars

_COMMIT = "e12afbbe"
"""The one of the tag v0.1, which a clone may lack. It has the same PySpark and the same JARs as this release."""
LEVEL = 2
"""The feature level at which a deployment of release 0.1 begins."""


class EarlierRelease:
    """A checkout of release 0.1."""

    def __init__(self, folder: Path) -> None:
        """Take the files from the history; skip the test in a checkout that has none, such as a shallow clone."""
        packed = subprocess.run(["git", "archive", _COMMIT], cwd=ROOT, capture_output=True, check=False)
        if packed.returncode:
            pytest.skip(f"needs the commit {_COMMIT} of the history: git fetch --unshallow")
        with tarfile.open(fileobj=BytesIO(packed.stdout)) as archive:
            archive.extractall(folder, filter="data")
        jars = folder / "deploy" / "jars"
        jars.mkdir(exist_ok=True)
        (jars / SPARK).symlink_to(our_jars().folder / SPARK)
        self._folder = folder

    def process(self, command: str, settings: Settings, *options: str, name: str = "") -> Child:
        """Describe a process of a command; its log has the name of the command, or this name.

        It gets those settings that are not the defaults: a release refuses settings that it does not know.
        """
        defaults = Settings().environment()
        given = {key: value for key, value in settings.environment().items() if value != defaults.get(key)}
        return Child(
            f"wakeroll {command} of release 0.1 {settings.replica}",
            [sys.executable, "-m", "pipeline.cli", command, "--bootstrap", settings.bootstrap, *options],
            log=settings.logs / f"{name or command}-0.1.log",
            env={**os.environ, **given, "PYTHONPATH": str(self._folder)},
            folder=self._folder,
            grace_s=90,
        )
