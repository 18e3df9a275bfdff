"""What a cluster's executors receive: the packages in an archive, and further settings from a file."""

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark import executor_packages
from wakeroll_pipeline.spark.executor_packages import FOLDER, PackagesMissing, packed
from wakeroll_pipeline.spark.executors import executor_confs
from wakeroll_pipeline.spark.spark_properties import InvalidSparkProperties, read_spark_properties

JARS = [Path("/jars/a b.jar"), Path("/jars/c.jar")]


@pytest.fixture
def little(monkeypatch) -> None:
    """Few packages, so that an archive is made in a moment."""
    monkeypatch.setattr(executor_packages, "_OTHERS", ("msgspec",))


@pytest.fixture(autouse=True)
def _environment(monkeypatch) -> None:
    """Leave the environment of this process as it is."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("little")
def test_the_archive_is_enough_for_a_python_without_packages(tmp_path):
    """C extensions are among the packages: they are imported from the folder into which Spark unpacks the archive."""
    archive = packed(tmp_path / "home")
    with zipfile.ZipFile(archive) as packages:
        packages.extractall(tmp_path / FOLDER)
    program = (
        "import msgspec, pathlib, wakeroll_model.shard as shard; print(pathlib.Path(shard.__file__).parent.parent.name)"
    )

    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": FOLDER},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout.strip(), done.stderr) == (FOLDER, "")


@pytest.mark.usefixtures("little")
def test_an_archive_is_made_once_for_each_version(tmp_path, monkeypatch):
    first = packed(tmp_path)
    written_ns = first.stat().st_mtime_ns
    again = packed(tmp_path)
    unchanged = again.stat().st_mtime_ns == written_ns
    monkeypatch.setattr(executor_packages, "_OTHERS", ("msgspec", "six"))
    other = packed(tmp_path)

    assert (again, unchanged) == (first, True)
    assert [file.name for file in tmp_path.iterdir()] == [other.name]
    assert other.name != first.name


def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(executor_packages, "_OTHERS", ("no-such-package",))

    with pytest.raises(PackagesMissing, match="executors need no-such-package, which is not installed here"):
        packed(tmp_path)


def test_what_packages_require_is_sent_too():
    """Pandas needs NumPy, which is a distribution of its own."""
    found = executor_packages._distributions()

    assert {"msgspec", "confluent-kafka", "cryptography", "cffi", "pandas", "pyarrow", "numpy", "six"} <= set(found)
    assert found["numpy"].version == importlib.metadata.version("numpy")
    assert "pyspark" not in found


@pytest.mark.parametrize("master", ["local[4]", "local-cluster[2,1,1024]"])
def test_executors_on_this_machine_use_its_files(master, tmp_path):
    confs = executor_confs(Settings(master=master, home=str(tmp_path)), JARS)

    assert confs["spark.executor.extraClassPath"] == "/jars/a b.jar:/jars/c.jar"
    assert confs["spark.driver.host"] == "127.0.0.1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("little")
def test_executors_of_a_cluster_are_sent_jars_and_packages(tmp_path):
    confs = executor_confs(Settings(master="spark://far:7077", home=str(tmp_path)), JARS)
    [archive] = tmp_path.iterdir()

    assert confs == {
        "spark.jars": "file:///jars/a%20b.jar,file:///jars/c.jar",
        "spark.archives": f"{archive.as_uri()}#{FOLDER}",
        "spark.executorEnv.PYTHONPATH": FOLDER,
    }


def test_executors_with_installed_packages_are_sent_jars_only(tmp_path):
    settings = Settings(master="k8s://far", home=str(tmp_path), executor_packages="installed")

    assert executor_confs(settings, JARS[1:]) == {"spark.jars": "file:///jars/c.jar"}
    assert list(tmp_path.iterdir()) == []


def test_further_spark_settings_are_read_as_spark_reads_them(tmp_path):
    file = tmp_path / "spark.conf"
    file.write_text("# executors\n\nspark.executor.memory  2g\nspark.executor.extraJavaOptions=-Da=b -Dc=d\n")

    assert read_spark_properties(file) == {
        "spark.executor.memory": "2g",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
    }


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "executor.memory 2g",
            r"line 2 is 'executor.memory 2g'; it must be a name \(spark.\*\) and a value",
        ),
        ("spark.executor.memory", "line 2 is 'spark.executor.memory'; it must be"),
        ("spark.master yarn", "line 2 sets spark.master; use wakeroll's setting 'master'"),
        ("spark.sql.shuffle.partitions=8", "use wakeroll's setting 'state_partitions'"),
    ],
)
def test_a_line_that_is_no_further_setting_is_named(tmp_path, line, found):
    file = tmp_path / "spark.conf"
    file.write_text(f"# mine\n{line}\n")

    with pytest.raises(InvalidSparkProperties, match=found):
        read_spark_properties(file)


def test_a_file_that_is_missing_is_named(tmp_path):
    with pytest.raises(InvalidSparkProperties, match=r"cannot read the Spark settings in .*spark\.conf"):
        read_spark_properties(tmp_path / "spark.conf")
