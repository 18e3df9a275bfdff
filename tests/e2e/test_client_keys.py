"""Clients with keys, on a real broker: those of a tenant work, and those of others cannot act for its groups."""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection, Topics
from wakeroll.keys import add_key, new_client_key, new_key, read_keys
from wakeroll_model.decisions import Membership, Rejected
from wakeroll_pipeline.kafka.control_topics import ensure_topics

pytestmark = pytest.mark.e2e

GROUP = "tenant.billing"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The keys of a deployment; the tenant's file has its own alone."""
    file = tmp_path_factory.mktemp("keys") / "all.toml"
    for key in (new_key("observer"), new_key("operator"), new_client_key("tenant.")):
        add_key(file, key)
    return file


@pytest.fixture(scope="module")
def plane(broker, keys: Path) -> Iterator[Coordinator]:
    connection = Connection(broker.bootstrap, topics=Topics(f"keys-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    coordinator = Coordinator(connection, read_keys(keys))
    coordinator.start()
    yield coordinator
    coordinator.stop()


def of_group(plane: Coordinator, kind: type, rule: str = "") -> list:
    return [
        one
        for one in tuple(plane.decided)
        if isinstance(one, kind) and one.group_id == GROUP and getattr(one, "rule", "") == rule
    ]


def test_a_client_with_the_key_consumes_commits_pulls_and_leaves(plane: Coordinator, keys: Path):
    """Each of its events is signed: none is rejected."""
    topic = plane.topic(1)
    plane.produce(topic, 0, 3)
    where = {"prefix": plane.connection.topics.prefix, "keys": keys}
    with Consumer(GROUP, [topic], plane.connection.bootstrap, consume_from="first", **where) as consumer:
        got = []

        def poll() -> None:
            message = consumer.poll(0.1)
            got.extend([] if message is None else [message.offset()])

        wait_until(lambda: got == [0, 1, 2], "all messages are read", between=poll)
        consumer.poll(0.1)
        assert consumer.commit(30)
        assert consumer.fetch((topic, 0), 3, wait=0.5).messages == []
    wait_until(
        lambda: [one.change for one in of_group(plane, Membership)] == ["joined", "left", "emptied"],
        "it has joined and left",
        state=lambda: plane.decided[-5:],
    )

    assert of_group(plane, Rejected, "signature") == []


def test_a_client_without_the_key_is_rejected_and_told_why(plane: Coordinator, caplog: pytest.LogCaptureFixture):
    """The log of the application names the rule: it needs a key file."""
    topic = plane.topic(1)
    with Consumer(GROUP, [topic], plane.connection.bootstrap, prefix=plane.connection.topics.prefix) as consumer:
        wait_until(
            lambda: "clients of the group 'tenant.billing' must sign" in caplog.text,
            "the rejection is in the log",
            between=lambda: consumer.poll(0.1),
        )

    assert plane.owners(GROUP) == {}
    assert len(of_group(plane, Rejected, "signature")) > 0
