"""The JARs for S3: fetched ones, and wakeroll's own, which makes S3A's creation of files conditional.

Wakeroll's JAR has three small classes, in the folder `java`. Janino, the compiler that Spark uses for generated code,
compiles them: a Java without its own compiler (JRE) is enough, and no binary file is in the repository.
"""

import hashlib
import importlib.util
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from wakeroll_pipeline.prerequisites import java_path
from wakeroll_pipeline.spark.jar_paths import S3, SPARK, JarSet, jar_paths, our_jars
from wakeroll_pipeline.spark.jar_sums import JarsMissing
from wakeroll_pipeline.spark.made_jars import made_jar, write_jar

SOURCES = Path(__file__).with_name("java")
_COMPILER = "org.codehaus.commons.compiler.samples.CompilerDemo"


def s3_session_jars(jars: JarSet | None = None) -> list[Path]:
    """Return the JARs that Spark needs besides its own, if tables or checkpoints are in an S3 store.

    Raises:
        JarsMissing: at least one JAR is missing.
    """
    jars = our_jars() if jars is None else jars
    fetched, ours = jar_paths(SPARK, S3, jars=jars), _jar(jars)
    if not ours.is_file():
        raise JarsMissing(f"{ours.name} is missing in {ours.parent}; run `wakeroll jars {S3}`.")
    return [*fetched, ours]


def ensure_s3_classes(jars: JarSet | None = None, *, say: Callable[[str], None] = print) -> None:
    """Compile wakeroll's classes if their JAR is missing; return quickly and silently if it exists.

    Raises:
        JarsMissing: the fetched JARs are missing, or for any other reason.
    """
    jars = our_jars() if jars is None else jars
    jar = _jar(jars)
    if jar.is_file():
        return
    try:
        _compile(jar, jar_paths(S3, jars=jars))
    except OSError as error:
        raise JarsMissing(f"cannot write {jar}: {error}; make that folder writable, then start again.") from error
    say(f"compiled {jar.name}")


def _jar(jars: JarSet) -> Path:
    """Return the path of wakeroll's JAR; its name has a hash of the sources, so that other sources have another JAR."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _sources())).hexdigest()
    return made_jar(jars, f"wakeroll-s3-{digest[:12]}.jar")


def _sources() -> list[Path]:
    return sorted(SOURCES.rglob("*.java"))


def _compile(jar: Path, libraries: list[Path]) -> None:
    """Compile wakeroll's classes into a JAR.

    Raises:
        JarsMissing: the compiler failed, or Java or PySpark is missing.
    """
    pyspark, java = importlib.util.find_spec("pyspark"), java_path()
    if pyspark is None or pyspark.origin is None or java is None:
        raise JarsMissing("PySpark or Java is missing; install wakeroll[spark] and a Java 17 or newer.")
    of_spark = sorted((Path(pyspark.origin).parent / "jars").glob("*.jar"))
    compiler = [path for path in of_spark if path.name.startswith(("janino-", "commons-compiler-"))]
    with tempfile.TemporaryDirectory() as classes:
        command = [java, "-XX:TieredStopAtLevel=1", "-cp", _class_path(compiler), _COMPILER, "-d", classes]
        command += ["-classpath", _class_path([*of_spark, *libraries]), *map(str, _sources())]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        compiled = sorted(Path(classes).rglob("*.class"))
        # The compiler's exit code is 0 even after errors.
        if len(compiled) < len(_sources()):
            raise JarsMissing(f"the classes for S3 were not compiled: {(done.stderr + done.stdout).strip()[:500]}")
        write_jar(jar, {path.relative_to(classes).as_posix(): path.read_bytes() for path in compiled})


def _class_path(jars: list[Path]) -> str:
    return os.pathsep.join(map(str, jars))
