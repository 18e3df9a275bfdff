"""Parts of a platform that several modules start."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.systems.broker_cluster import BrokerCluster
from tests.support.systems.s3_server import S3Server
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.spark.jar_paths import S3, SPARK
from wakeroll_pipeline.spark.jars import ensure_jars
from wakeroll_pipeline.spark.s3_classes import ensure_s3_classes


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, the JARs for it, and an environment in which each client finds it."""
    pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")
    ensure_jars((SPARK, S3))
    ensure_s3_classes()
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    """Three brokers for the tests of a module; each test leaves them running and in sync."""
    with BrokerCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def restore(request, wakeroll, monkeypatch) -> Callable[[Settings], str]:
    """`wakeroll restore`, on the Spark of this process, which spares one of its own; returns what it prints."""
    request.getfixturevalue("spark")

    def restore(settings: Settings) -> str:
        for name, value in settings.environment().items():
            monkeypatch.setenv(name, value)
        code, said, complaint = wakeroll("restore", "--bootstrap", settings.bootstrap)
        assert code == 0, said + complaint
        return str(said)

    return restore
