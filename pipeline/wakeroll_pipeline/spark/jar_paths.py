"""The JARs by name: `spark`, `s3`, `broker`, or `kafka-3.9.2`; their folder, and their paths.

Their lists (`ivy.xml` and `sha256sums`) are a part of this package, in the folder `jar_lists`.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from wakeroll_pipeline.spark.jar_sums import SUMS, JarsMissing, read_sums

FOLDER_VARIABLE = "WAKEROLL_JARS"
"""Environment variable that names the folder of the JARs."""

SPARK = "spark"
"""Name of the JARs that Spark needs besides its own."""
S3 = "s3"
"""Name of the JARs that Spark needs besides those for tables and checkpoints in an S3 store."""
BROKER = "broker"
"""Name of the embedded broker's JARs."""
LOCAL = (SPARK, BROKER)
"""Names of the JARs that the whole system on one machine needs."""

_CHECKOUT = Path(__file__).resolve().parents[3]
_LISTS = Path(__file__).with_name("jar_lists")


class JarSet(Struct, frozen=True):
    """The JARs of one version of wakeroll: a folder that has them, or will have them, and their lists."""

    folder: Path
    """Has one subfolder for each of `spark`, `s3` and `broker`, and one for each other version of Kafka."""
    lists: Path = _LISTS
    """Has `ivy.xml` and `sha256sums`, and one subfolder with such files for each other version of Kafka."""

    @property
    def other_brokers(self) -> list[str]:
        """The names of the JARs of other versions of Kafka, such as kafka-3.9.2; sorted."""
        return sorted(file.parent.name for file in self.lists.glob("kafka-*/ivy.xml"))

    @property
    def names(self) -> list[str]:
        """All names."""
        return [SPARK, S3, BROKER, *self.other_brokers]

    def part(self, name: str) -> "tuple[JarSet, str]":
        """Return the set with the JARs of a name, and the configuration in that set's `ivy.xml`.

        Raises:
            LookupError: there is no such name.
        """
        if name not in self.names:
            raise LookupError(f"no JARs are named {name!r}; expected: {', '.join(self.names)}")
        if name in (SPARK, S3, BROKER):
            return self, name
        return JarSet(self.folder / name, self.lists / name), BROKER


def our_jars() -> JarSet:
    """Return the JARs that this process uses, whether they exist or not.

    Their folder is the one that WAKEROLL_JARS names; else `deploy/jars` of the checkout that this package is in; else,
    for an installed package, one in the user's cache, which all environments with the same list of JARs share.

    Raises:
        JarsMissing: no folder is named, and the user has no home.
    """
    if named := os.environ.get(FOLDER_VARIABLE):
        return JarSet(Path(named).absolute())
    if (_CHECKOUT / "pyproject.toml").is_file():
        return JarSet(_CHECKOUT / "deploy" / "jars")
    digest = hashlib.sha256((_LISTS / SUMS).read_bytes()).hexdigest()
    return JarSet(_user_cache() / "wakeroll" / f"jars-{digest[:12]}")


def jar_paths(*names: str, jars: JarSet | None = None) -> list[Path]:
    """Return the paths of all JARs of these names, in the order of the names, then of the paths.

    Args:
        names: `spark`, `s3`, `broker`, or another version of Kafka.
        jars: lists and folder; None: those of this process.

    Raises:
        JarsMissing: at least one JAR is missing; the message names the command that fetches all of them.
    """
    jars = our_jars() if jars is None else jars
    paths: list[Path] = []
    lacking = {}
    for name in names:
        part, configuration = jars.part(name)
        listed = [part.folder / file for file in read_sums(part.lists) if file.startswith(f"{configuration}/")]
        if missing := [jar.name for jar in listed if not jar.is_file()]:
            lacking[name] = f"{len(missing)} of {len(listed)} JARs of {name} ({_some(missing)})"
        paths += listed
    if lacking:
        what = " and ".join(lacking.values())
        raise JarsMissing(f"{jars.folder} lacks {what}; run `wakeroll jars {' '.join(lacking)}`.")
    return paths


def spark_jars() -> list[Path]:
    """Return the JARs that Spark needs besides its own, sorted by name.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    return jar_paths(SPARK)


def broker_jars(version: str = "") -> list[Path]:
    """Return the complete class path of the embedded broker, sorted by name.

    Args:
        version: version of Kafka, such as 3.9.2; empty: the usual one.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    return jar_paths(f"kafka-{version}" if version else BROKER)


NO_WORDS = "-Xlog:disable -Xlog:all=error:stderr"
"""JVM options that suppress the JVM's own warnings on standard output."""


def class_file(name: str) -> Path:
    """Return the path of a file that `class_data_sharing` creates; with it, Spark starts in 5 s instead of 7.

    Args:
        name: `spark` or `broker`.
    """
    return our_jars().folder / f".classes_of_{name}.jsa"


def class_options(name: str) -> list[str]:
    """Return the JVM options that use a class file; none if it does not exist, or if its size has changed.

    A JVM ignores a file of another Java or other JARs and, by VerifySharedSpaces, a file with changed bytes. A
    truncated file would end the JVM with SIGBUS, so its size is compared here.

    Args:
        name: `spark` or `broker`.
    """
    file = class_file(name)
    stamp = stamp_of(file)
    if not file.exists() or not stamp.exists() or not stamp.read_text(encoding="utf-8").endswith(size_line(file)):
        return []
    return [f"-XX:SharedArchiveFile={file}", "-XX:+VerifySharedSpaces", *NO_WORDS.split()]


def stamp_of(file: Path) -> Path:
    """Return the path of the file that records the inputs of a class file; its last line is the `size_line`."""
    return file.with_suffix(".of")


def size_line(file: Path) -> str:
    """Return a line with the size of a class file, or with the fact that there is no such file."""
    return f"{file.stat().st_size if file.exists() else 'no'} bytes\n"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _user_cache() -> Path:
    """Return the platform's cache folder of the user."""
    if (named := Path(os.environ.get("XDG_CACHE_HOME", ""))).is_absolute():
        return named
    try:
        home = Path.home()
    except RuntimeError as error:
        raise JarsMissing(f"no folder for the JARs: {error}; name one in {FOLDER_VARIABLE}.") from error
    return home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
