"""One control plane on the shared broker for all tests that compare the SDK with other clients of Kafka."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.support.systems.coordinator_thread import Coordinator, coordinating
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics

MESSAGES = 10
"""Messages in each partition of `topic`, with the values 0 to 9."""


@pytest.fixture(scope="session")
def coordinator(broker) -> Iterator[Coordinator]:
    with coordinating(Connection(broker.bootstrap, topics=Topics(f"peers-{uuid.uuid4().hex[:6]}"))) as coordinator:
        yield coordinator


@pytest.fixture
def topic(coordinator) -> str:
    """A topic with two partitions of ten messages."""
    name = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(name, partition, MESSAGES)
    return name


@pytest.fixture
def group_id() -> str:
    return f"peers-{uuid.uuid4().hex[:6]}"


@pytest.fixture
def consumer_of(coordinator, group_id, topic) -> Iterator[Callable[..., Consumer]]:
    """Create members of the test's group, which are closed when it ends."""
    with ExitStack() as stack:

        def make(**settings) -> Consumer:
            plane = coordinator.connection
            arguments = {"consume_from": "first", "commit_interval": None, "prefix": plane.topics.prefix, **settings}
            consumer = Consumer(group_id, arguments.pop("topics", [topic]), plane.bootstrap, **arguments)
            stack.callback(consumer.close)
            return consumer

        yield make
