"""What tests of several folders share."""

from collections.abc import Iterator

import pytest

from pipeline.jars import ensure_jars
from pipeline.local.broker import EmbeddedBroker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """A running broker for the whole session; tests share it, so each names its own topics and groups."""
    ensure_jars()
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running
