"""Parts of a platform that several modules start."""

from collections.abc import Callable, Iterator

import pytest

from pipeline.settings import Settings
from tests.support.systems.broker_cluster import BrokerCluster


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
