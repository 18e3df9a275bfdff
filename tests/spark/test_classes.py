"""The classes that `make setup` lets Java keep: used where they fit, and not missed where they do not."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.running_processes import run_process
from wakeroll_pipeline.prerequisites import java_path
from wakeroll_pipeline.spark.jar_paths import BROKER, NO_WORDS, SPARK, broker_jars, class_file, class_options, stamp_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wakeroll_pipeline.local.broker import EmbeddedBroker

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux says what a process has mapped")
def test_a_session_uses_what_was_kept(engine: "SparkSession"):
    if class_file(SPARK).with_suffix(".of").exists() and not class_file(SPARK).exists():
        pytest.skip("this Java cannot create the file")
    pid = engine.sparkContext._gateway.proc.pid  # type: ignore[union-attr]

    assert str(class_file(SPARK)) in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(not MAPS.exists(), reason="only Linux says what a process has mapped")
def test_the_broker_uses_what_was_kept(broker: "EmbeddedBroker"):
    if class_file(BROKER).with_suffix(".of").exists() and not class_file(BROKER).exists():
        pytest.skip("this Java cannot create the file")

    assert str(class_file(BROKER)) in Path(f"/proc/{broker.pid}/maps").read_text()


def test_a_session_has_the_settings_of_hadoop_without_those_of_yarn(engine: "SparkSession"):
    settings = engine.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]

    assert settings.get("fs.s3a.impl") == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert settings.get("yarn.resourcemanager.hostname") is None
    assert settings.size() < 500


@pytest.mark.parametrize("content", [None, b"not what Java has written"], ids=["other JARs", "another file"])
def test_a_java_that_they_do_not_fit_goes_on_without_a_word(tmp_path: Path, content: bytes | None):
    java = java_path()
    assert java is not None
    file = class_file(SPARK)
    if content is not None:
        file = tmp_path / "classes.jsa"
        file.write_bytes(content)

    ended = subprocess.run(
        [java, f"-XX:SharedArchiveFile={file}", *NO_WORDS.split(), "-cp", str(tmp_path), "--version"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ended.stdout.startswith("openjdk ")
    assert ended.stderr == ""


@pytest.mark.parametrize(
    ("damaged", "is_used"),
    [
        (lambda body: body, True),
        (lambda body: body[: len(body) // 2], False),
        (lambda body: body[:0], False),
        (lambda body: body[: len(body) // 3] + bytes(len(body) // 3) + body[len(body) // 3 * 2 :], True),
    ],
    ids=["whole", "cut", "empty", "zeros"],
)
def test_a_damaged_file_of_classes_stops_no_jvm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: Callable[[bytes], bytes], is_used: bool
):
    """It ended the JVM with SIGBUS or SIGSEGV: the disk was full, or the folder was copied in part."""
    kept, paths = class_file(BROKER), broker_jars()
    if not kept.exists():
        pytest.skip("this Java cannot create the file")
    monkeypatch.setenv("WAKEROLL_JARS", str(tmp_path))
    class_file(BROKER).write_bytes(damaged(kept.read_bytes()))
    shutil.copy(stamp_of(kept), stamp_of(class_file(BROKER)))
    java, jars = java_path(), os.pathsep.join(map(str, paths))
    assert java is not None

    options = class_options(BROKER)
    ended = run_process([java, "-XX:+UseSerialGC", *options, "-cp", jars, "kafka.Kafka", "--version"])

    assert bool(options) == is_used
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_java_that_keeps_none_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-Xshare:off")
    program = (
        "from pathlib import Path; "
        "from wakeroll_pipeline.spark.class_data_sharing import ensure_classes, spark_classes; "
        f"ensure_classes(spark_classes(Path({str(tmp_path / 'classes.jsa')!r})))"
    )

    said = [subprocess.check_output([sys.executable, "-c", program], text=True) for _ in range(2)]

    assert said[0].splitlines() == [
        "creating a file of Spark's classes, 180 MB, so that sessions start sooner (only once; about half a minute)",
        "this Java cannot create it; everything works without the file, but starts some seconds later",
    ]
    assert said[1] == ""
    assert [file.name for file in tmp_path.iterdir()] == ["classes.of"]
