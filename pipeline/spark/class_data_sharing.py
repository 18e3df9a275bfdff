"""Spark's classes, kept as a JVM wants them: it maps one file, instead of loading and verifying them at each start.

Java calls it class data sharing.  `python -m pipeline.spark.class_data_sharing` starts a session, asks it all views,
and lets its JVM write what it has loaded (180 MB, in deploy/jars/).  It is
quick and silent when that is there; only time depends on it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from pipeline.prerequisites import java_path
from pipeline.settings import Settings
from pipeline.spark.jars import CLASSES, spark_jars
from wakeroll.errors import WakerollError

_MAKING_S = 300.0
"""For the JVM to write its classes; it takes 10 to 30 s."""


def ensure_classes(file: Path = CLASSES, *, say: Callable[[str], None] = print) -> None:
    """See to it that there are classes for this Java and these JARs; one that cannot write them is asked once.

    Args:
        file: where they go; beside it, what they were made of.
        say: is told what happens, a line at a time.

    Raises:
        JarsMissing, SparkFailed: there is no session to be had.
        OSError: the file cannot be written.
    """
    stamp = file.with_suffix(".of")
    made_of = _made_of()
    if stamp.exists() and stamp.read_text(encoding="utf-8") == made_of:
        return
    say("letting Java keep Spark's classes, 180 MB, so that sessions start sooner (once; half a minute)")
    file.unlink(missing_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}.new")
    try:
        # Asked without Spark, which would not start: it takes a Java that brings classes of its own to begin with.
        _java(f"-XX:ArchiveClassesAtExit={unfinished}", "--version")
        if unfinished.exists():
            _make(unfinished)
            unfinished.replace(file)
        else:
            say("this Java keeps none; all works without, and starts some seconds later")
    finally:
        unfinished.unlink(missing_ok=True)
    stamp.write_text(made_of, encoding="utf-8")


def _make(file: Path) -> None:
    """Use a session as its users do, in this process, and let its JVM write the classes that this took."""
    # Each `make run` asks whether they are there; only who makes them should wait for PySpark.
    from pipeline.ledger.tables import ensure_tables, open_views
    from pipeline.spark.session import NO_WORDS, start_brief_session

    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        settings = Settings(home=home)
        spark = start_brief_session(settings, "classes", java=f'-XX:ArchiveClassesAtExit="{file}" {NO_WORDS}')
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        stack.callback(jvm.kill)
        ensure_tables(spark, settings.warehouse)
        for name in open_views(spark, settings.warehouse):
            spark.table(name).collect()
        spark.stop()
        # It writes when it ends, and it ends when nobody can talk to it any more.
        jvm.stdin.close()
        jvm.wait(_MAKING_S)


def _made_of() -> str:
    """Return what the JVM compares, too, before it uses such a file: its own version, and the JARs as they are."""
    pyspark = find_spec("pyspark")
    assert pyspark, "it is one of our requirements"
    jars = [*spark_jars(), *sorted(Path(str(pyspark.origin)).parent.glob("jars/*.jar"))]
    stats = [(jar, jar.stat()) for jar in jars]
    return _java("-version").stderr + "".join(f"{jar} {stat.st_size} {stat.st_mtime_ns}\n" for jar, stat in stats)


def _java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([java_path() or "java", *options], capture_output=True, text=True, check=False)


def main() -> int:
    """Make them; return the exit code, 0 also where that does not work, for all else does."""
    try:
        ensure_classes(say=partial(print, flush=True))
    except (WakerollError, OSError, subprocess.TimeoutExpired) as error:
        print(f"classes: {error}; all works without them, and starts some seconds later", file=sys.stderr)
    except KeyboardInterrupt:
        print("classes: stopped; the next start makes them", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
