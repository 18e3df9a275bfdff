"""JARs that are made here and not fetched: one of them hides settings of Hadoop.

It has no classes. It hides the settings of YARN and MapReduce, 721 of 1,103. Spark sends Hadoop's settings with each
batch of a stateful query, and compresses each setting separately: that takes 5.4 ms of a batch with all of them, and
2.9 ms without these. They must be hidden, because Hadoop reads removed settings again.
"""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

from wakeroll_pipeline.spark.jar_paths import JarSet, our_jars

_HIDDEN = ("mapred-default.xml", "yarn-default.xml")
"""Names of files of which Hadoop reads the first one on the class path."""


def hadoop_defaults_jar() -> list[Path]:
    """Return the JAR, which has to be the first on the class path; write it if it is missing.

    The result is an empty list if the JAR cannot be written, because it is optional.
    """
    jar = made_jar(our_jars(), "wakeroll-hadoop-defaults.jar")
    if not jar.is_file():
        try:
            write_jar(jar, dict.fromkeys(_HIDDEN, b"<configuration/>"))
        except OSError:
            return []
    return [jar]


def made_jar(jars: JarSet, name: str) -> Path:
    """Return the path of a JAR that is made here; it need not exist."""
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
