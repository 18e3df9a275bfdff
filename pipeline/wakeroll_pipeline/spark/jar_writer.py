"""JARs that are made here, not fetched."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from wakeroll_pipeline.spark.jar_paths import JarSet


def made_jar(jars: JarSet, name: str) -> Path:
    """Return the path of a JAR that is made here, whether it exists or not."""
    return jars.folder / ".compiled" / name


def write_jar(jar: Path, files: Mapping[str, bytes]) -> None:
    """Write a JAR with these files: always the same bytes, so that machines of a cluster can compare them.

    Raises:
        OSError: it cannot be written.
    """
    jar.parent.mkdir(parents=True, exist_ok=True)
    unfinished = jar.with_suffix(f".{os.getpid()}.new")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    unfinished.replace(jar)
