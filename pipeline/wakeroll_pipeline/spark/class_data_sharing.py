"""Class data sharing: a JVM maps one file with all classes, instead of loading and verifying them at each start.

`python -m wakeroll_pipeline.spark.class_data_sharing` starts a session, queries all views, and lets its JVM write the
loaded classes (180 MB, in the folder of the JARs). If the file exists already, it does nothing. Only the start time of
sessions depends on the file. The embedded broker has such a file too: `local/broker_classes.py`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from wakeroll.errors import WakerollError
from wakeroll_pipeline.prerequisites import java_path
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_paths import NO_WORDS, SPARK, class_file, size_line, spark_jars, stamp_of
from wakeroll_pipeline.spark.made_jars import hadoop_defaults_jar

MAKING_S = 300.0
"""Time limit for the JVM to write its classes (s); it takes 10 to 30 s."""


class ClassFile(Struct, frozen=True, kw_only=True):
    """A file of classes, and the JARs that it is made of."""

    path: Path
    """Path of the file; a second file beside it records the Java and the JARs that it was made of."""
    jars: Sequence[Path]
    """The class path; a JVM with another class path ignores the file."""
    says: str
    """Description of the file with its cost, for the line that announces it."""
    make: Callable[[Path], None]
    """Starts a JVM that writes its classes to a path when it ends."""


def spark_classes(path: Path | None = None) -> ClassFile:
    """Return the file of Spark's classes; `path` None: the file that sessions use, in the folder of the JARs.

    Raises:
        JarsMissing: JARs of Spark are missing.
    """
    pyspark = find_spec("pyspark")
    assert pyspark, "PySpark is a requirement of this package"
    of_spark = sorted(Path(str(pyspark.origin)).parent.glob("jars/*.jar"))
    return ClassFile(
        path=class_file(SPARK) if path is None else path,
        jars=[*hadoop_defaults_jar(), *spark_jars(), *of_spark],
        says="Spark's classes, 180 MB, so that sessions start sooner (only once; about half a minute)",
        make=_make,
    )


def ensure_classes(classes: ClassFile, *, say: Callable[[str], None] = print) -> None:
    """Create a class file for this Java and these JARs if it is missing; do not retry with a Java without support.

    Args:
        classes: the file.
        say: called with each line of progress.

    Raises:
        JarsMissing, SparkFailed, BrokerFailed: the program of the classes cannot be started.
        OSError: the file cannot be written.
    """
    file = classes.path
    stamp = stamp_of(file)
    made_of = _made_of(classes.jars)
    if stamp.exists() and stamp.read_text(encoding="utf-8") == made_of + size_line(file):
        return
    say(f"creating a file of {classes.says}")
    file.unlink(missing_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.new")
    try:
        # First tried without the program, which would not start: dumping requires a Java with its own class archive.
        _java(f"-XX:ArchiveClassesAtExit={unfinished}", "--version")
        if unfinished.exists():
            classes.make(unfinished)
            unfinished.replace(file)
        else:
            say("this Java cannot create it; everything works without the file, but starts some seconds later")
    finally:
        unfinished.unlink(missing_ok=True)
    stamp.write_text(made_of + size_line(file), encoding="utf-8")


def _make(file: Path) -> None:
    """Use a session in this process as its users do, and let its JVM write the loaded classes."""
    # `make run` checks the file each time; PySpark is imported only here, because that takes long.
    from wakeroll_pipeline.ledger.tables import ensure_tables, open_views
    from wakeroll_pipeline.spark.session import jvm_process, start_brief_session

    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        settings = Settings(home=home)
        spark = start_brief_session(settings, "classes", java=f'-XX:ArchiveClassesAtExit="{file}" {NO_WORDS}')
        jvm = jvm_process(spark)
        assert jvm is not None, "this process started the JVM"
        assert jvm.stdin is not None, "PySpark gives it a pipe"
        stack.callback(jvm.kill)
        ensure_tables(spark, settings.warehouse)
        for name in open_views(spark, settings.warehouse):
            spark.table(name).collect()
        spark.stop()
        # The JVM writes the file when it ends, and it ends when its input is closed.
        jvm.stdin.close()
        jvm.wait(MAKING_S)


def _made_of(jars: Sequence[Path]) -> str:
    """Return the data that the JVM compares before it uses the file: its version, and the JARs with sizes and times."""
    stats = [(jar, jar.stat()) for jar in jars]
    return _java("-version").stderr + "".join(f"{jar} {stat.st_size} {stat.st_mtime_ns}\n" for jar, stat in stats)


def _java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java_path() or "java", *options], capture_output=True, text=True, check=False)


def main(of: Callable[[], ClassFile] = spark_classes) -> int:
    """Create a class file; return the exit code, which is 0 even on failure, because the file is optional."""
    try:
        ensure_classes(of(), say=partial(print, flush=True))
    except (WakerollError, OSError, subprocess.TimeoutExpired) as error:
        print(f"classes: {error}; everything works without the file, but starts some seconds later", file=sys.stderr)
    except KeyboardInterrupt:
        print("classes: stopped; the next start creates the file", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
