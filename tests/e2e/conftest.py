"""A control plane without Spark, for tests of what talks to it."""

import uuid
from collections.abc import Iterator

import pytest

from tests.support.systems.coordinator_thread import Coordinator, coordinating
from tests.support.systems.decision_sink import Sink
from wakeroll import Admin
from wakeroll.connection import Connection, Topics


@pytest.fixture(scope="module")
def coordinator(broker) -> Iterator[Coordinator]:
    """The control plane of one module's tests, with topics of its own."""
    with coordinating(Connection(broker.bootstrap, topics=Topics(f"plane-{uuid.uuid4().hex[:6]}"))) as coordinator:
        yield coordinator


@pytest.fixture(scope="module")
def sink(coordinator: Coordinator) -> Iterator[Sink]:
    """The decisions of this module's coordinator on record."""
    sink = Sink(coordinator)
    sink.start()
    yield sink
    sink.stop()


@pytest.fixture(scope="module")
def admin(coordinator: Coordinator) -> Iterator[Admin]:
    """The operator's tools for this module's control plane."""
    connection = coordinator.connection
    with Admin(connection.bootstrap, prefix=connection.topics.prefix) as admin:
        yield admin


@pytest.fixture
def group_id() -> str:
    """A group of one test."""
    return f"billing-{uuid.uuid4().hex[:6]}"
