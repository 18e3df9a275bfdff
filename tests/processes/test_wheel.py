"""The wheel: each file that the code opens is in it, and nothing else that would lie about in site-packages."""

import tarfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.support.running_processes import ROOT

PACKAGES = ("model", "wakeroll", "pipeline", "dbt_like_sql")
LEFT_BEHIND = frozenset({"__pycache__", "target", "logs", ".user.yml"})
"""What Python and dbt leave in a checkout."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """A wheel of this checkout, built by hatchling in this process: without isolation, it needs no network."""
    [path] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_the_wheel_has_every_file_of_the_packages(wheel: zipfile.ZipFile):
    """Templates, views, lists of JARs, Java sources, the dbt project: a missing one is noticed only when used."""
    files = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and not LEFT_BEHIND.intersection(path.parts)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert packed == files
    assert {
        "pipeline/spark/jar_lists/ivy.xml",
        "pipeline/spark/jar_lists/sha256sums",
        "pipeline/spark/jar_lists/kafka-3.9.2/sha256sums",
        "pipeline/spark/log4j2.properties",
        "pipeline/ledger/views/groups.sql",
        "dbt_like_sql/dbt_project.yml",
    } <= packed
    assert any(name.endswith(".java") for name in packed)
    assert any(name.startswith("pipeline/serve/static/") for name in packed)
    assert any(name.startswith("pipeline/serve/templates/") for name in packed)


def test_the_sdk_needs_two_packages(metadata: Message):
    """An application that consumes must not install a database or Spark."""
    always = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]

    assert sorted(need.partition(">")[0] for need in always) == ["confluent-kafka", "msgspec"]


def test_the_wheel_has_the_command_and_the_extras(wheel: zipfile.ZipFile, metadata: Message):
    [points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    assert "wakeroll = pipeline.cli:main" in wheel.read(points).decode()
    assert {"ask", "serve", "spark", "s3", "quality", "sql"} <= set(metadata.get_all("Provides-Extra", []))


def test_a_wheel_can_be_built_of_the_sources_alone(tmp_path: Path, wheel: zipfile.ZipFile):
    """Who builds from the sdist gets the same files."""
    [path] = SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    [sources] = [folder for folder in tmp_path.iterdir() if folder.is_dir()]
    [again] = WheelBuilder(str(sources)).build(directory=str(tmp_path), versions=["standard"])

    with zipfile.ZipFile(again) as rebuilt:
        assert sorted(rebuilt.namelist()) == sorted(wheel.namelist())
