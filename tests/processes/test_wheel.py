"""The wheel: each file that the code opens is in it, and nothing that takes a name of somebody else's module."""

import re
import subprocess
import sys
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

PLACES = {
    "wakeroll": "wakeroll",
    "model/wakeroll_model": "wakeroll_model",
    "pipeline/wakeroll_pipeline": "wakeroll_pipeline",
    "dbt_like_sql": "wakeroll_pipeline/dbt_like_sql",
}
"""Folder of the checkout -> where its files are installed."""
FOREIGN = ("model", "pipeline", "tests", "bench", "dbt_like_sql", "checkpoints", "deploy", "docs")
"""Modules that an application may have, named as folders of this repository."""
APPLICATION = """
import bench, checkpoints, dbt_like_sql, deploy, docs, model, pipeline, tests
for mine in (bench, checkpoints, dbt_like_sql, deploy, docs, model, pipeline, tests):
    assert mine.MINE == "the application's"

import wakeroll
from wakeroll import Consumer, Producer
from wakeroll.testing import MemoryBroker
from wakeroll_model.shard import Shard
from wakeroll_pipeline.questions.marts import PROJECT

assert (PROJECT / "dbt_project.yml").exists()
with MemoryBroker() as broker, Producer(broker.bootstrap) as producer:
    broker.create_topic("orders", queues=1)
    with Consumer("billing", ["orders"], broker.bootstrap, consume_from="first") as consumer:
        producer.send("orders", b"hello")
        print(consumer.poll(30).value().decode(), wakeroll.__file__)
"""
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
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in PLACES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not LEFT_BEHIND.intersection(path.parts)
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert packed == files
    assert {
        "wakeroll_pipeline/spark/jar_lists/ivy.xml",
        "wakeroll_pipeline/spark/jar_lists/sha256sums",
        "wakeroll_pipeline/spark/jar_lists/kafka-3.9.2/sha256sums",
        "wakeroll_pipeline/spark/log4j2.properties",
        "wakeroll_pipeline/ledger/views/groups.sql",
        "wakeroll_pipeline/dbt_like_sql/dbt_project.yml",
    } <= packed
    assert any(name.endswith(".java") for name in packed)
    assert any(name.startswith("wakeroll_pipeline/serve/static/") for name in packed)
    assert any(name.startswith("wakeroll_pipeline/serve/templates/") for name in packed)


def test_the_wheel_takes_no_foreign_name(wheel: zipfile.ZipFile):
    """Most applications of machine learning have a module `model` or `pipeline`: what is installed has other names."""
    names = {re.sub(r"(?<=-)[0-9.]+(?=[.]dist-info$)", "…", name.partition("/")[0]) for name in wheel.namelist()}

    assert names == {"wakeroll", "wakeroll_model", "wakeroll_pipeline", "wakeroll-….dist-info"}


def test_an_application_may_have_modules_named_as_our_folders(tmp_path: Path, wheel: zipfile.ZipFile):
    """Its folder comes first where Python looks for modules."""
    site, application = tmp_path / "site-packages", tmp_path / "application"
    wheel.extractall(site)
    application.mkdir()
    for name in FOREIGN:
        (application / f"{name}.py").write_text('MINE = "the application\'s"\n', encoding="utf-8")
    (application / "main.py").write_text(APPLICATION, encoding="utf-8")

    runs = [
        subprocess.run(
            [sys.executable, *arguments],
            cwd=application,
            env={"PYTHONPATH": str(site), "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        for arguments in (["main.py"], ["-m", "wakeroll_pipeline.cli", "--help"])
    ]

    assert [run.returncode for run in runs] == [0, 0], [run.stderr for run in runs]
    assert runs[0].stdout.split() == ["hello", str(site / "wakeroll" / "__init__.py")]
    assert "wakeroll" in runs[1].stdout


def test_the_sdk_needs_two_packages(metadata: Message):
    """An application that consumes must not install a database or Spark."""
    always = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]

    assert sorted(need.partition(">")[0] for need in always) == ["confluent-kafka", "msgspec"]


def test_the_wheel_has_the_command_and_the_extras(wheel: zipfile.ZipFile, metadata: Message):
    [points] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]

    assert "wakeroll = wakeroll_pipeline.cli:main" in wheel.read(points).decode()
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
