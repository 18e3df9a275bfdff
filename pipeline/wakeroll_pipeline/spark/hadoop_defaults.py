"""Our JAR without classes: it hides the settings of Hadoop that belong to YARN and MapReduce, 721 of 1,103.

Spark sends Hadoop's settings with each batch of a stateful query, and compresses each one alone: 5.4 ms of a batch with
all of them, and 2.9 ms without these. They must be hidden, because Hadoop reads removed settings again.
"""

from pathlib import Path

from wakeroll_pipeline.spark.jar_paths import our_jars
from wakeroll_pipeline.spark.jar_writer import made_jar, write_jar

_HIDDEN = ("mapred-default.xml", "yarn-default.xml")
"""Hadoop reads the first file of each of these names on the class path."""


def hadoop_defaults_jar() -> list[Path]:
    """Return the JAR, which has to be the first on the class path; write it if it is missing.

    The list is empty if it cannot be written. Everything works without it.
    """
    jar = made_jar(our_jars(), "wakeroll-hadoop-defaults.jar")
    if not jar.is_file():
        try:
            write_jar(jar, dict.fromkeys(_HIDDEN, b"<configuration/>"))
        except OSError:
            return []
    return [jar]
