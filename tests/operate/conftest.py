"""The store that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from pipeline.spark.jars import CONFIGURATIONS, S3, ensure_jars
from tests.support.systems.s3_server import S3Server


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A real S3 server, the JARs for it, and an environment in which each client finds it."""
    pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")
    ensure_jars(configurations=(*CONFIGURATIONS, S3))
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server
