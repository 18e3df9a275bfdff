"""Remove what an image does not need from an installed environment: trim.py FOLDER_OF_THE_ENVIRONMENT.

Each group below has its reason. The test of the image starts each role with what is left.
"""

import platform
import shutil
import sys
import zipfile
from pathlib import Path

JARS = (
    # Machine learning and graphs, with their numerical libraries.
    *("breeze", "spire", "cats-kernel", "algebra", "spark-mllib_", "spark-graphx", "JTransforms", "JLargeArrays"),
    *("arpack", "lapack", "blas"),
    # Hive's metastore: the tables are Delta tables in folders. hive-storage-api stays, because ORC needs it.
    *("hive-beeline", "hive-cli", "hive-common", "hive-exec", "hive-jdbc", "hive-metastore"),
    *("hive-serde", "hive-service", "hive-shims", "spark-hive", "datanucleus", "derby", "jdo-api", "javax.jdo"),
    # Spark Connect, and the shell for Scala.
    *("spark-connect_", "spark-repl", "scala-compiler"),
    "spark-yarn",
)
"""Beginnings of the names of Spark's JARs that nothing here loads."""

NATIVE = ("rocksdbjni", "netty-tcnative-boringssl-static")
"""JARs with native libraries for several systems; those of this processor on Linux stay."""

FOLDERS = ("pyspark/examples", "pyspark/data", "pandas/tests", "pyarrow/tests", "pyarrow/include")
"""Folders of packages: examples, tests, headers."""

FILES = (
    "pyarrow/libarrow_flight.so.*",
    "pyarrow/libarrow_python_flight.so",
    "pyarrow/_flight*.so",
)
"""The RPC of Arrow, which neither wakeroll nor Spark loads."""


def trim(environment: Path) -> None:
    """Delete the files and folders of this module's lists; each must exist, so that no list grows stale."""
    [packages] = environment.glob("lib/python3*/site-packages")
    jars = packages / "pyspark" / "jars"
    for beginning in JARS:
        found = list(jars.glob(f"{beginning}*.jar"))
        assert found, f"Spark has no JAR {beginning}*; remove it from the list"
        for jar in found:
            jar.unlink()
    for beginning in NATIVE:
        for jar in jars.glob(f"{beginning}*.jar"):
            _keep_this_platform(jar)
    for folder in FOLDERS:
        shutil.rmtree(packages / folder)
    for pattern in FILES:
        for file in packages.glob(pattern):
            file.unlink()


def _keep_this_platform(jar: Path) -> None:
    """Rewrite a JAR without the native libraries of other systems and processors."""
    names = {"x86_64": ("linux64", "linux-x86_64", "linux_x86_64"), "aarch64": ("linux-aarch64", "linux_aarch_64")}
    wanted = names[platform.machine()]
    smaller = jar.with_suffix(".new")
    with zipfile.ZipFile(jar) as source, zipfile.ZipFile(smaller, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            is_native = entry.filename.endswith((".so", ".jnilib", ".dll", ".dylib"))
            if not is_native or (any(name in entry.filename for name in wanted) and "musl" not in entry.filename):
                target.writestr(entry, source.read(entry))
    smaller.replace(jar)


if __name__ == "__main__":
    trim(Path(sys.argv[1]))
