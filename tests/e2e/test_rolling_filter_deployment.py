"""A rolling deployment changes a filter, with a real broker: nothing is lost, and nothing is repeated."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.headers import headers_of
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model import feature_levels
from wakeroll_model.events import Level
from wakeroll_model.signing import DEV_KEYS

pytestmark = pytest.mark.e2e

TAGS = ("paid", "refunded", "shipped")
PATIENCE_S = 120.0


class Group:
    """Members that run a handler, and the messages that they have processed."""

    def __init__(self, coordinator, group_id: str) -> None:
        self.processed: Counter[str] = Counter()
        self.sent: list[str] = []
        self._coordinator, self._group_id = coordinator, group_id
        self._lock = threading.Lock()
        self._members: dict[str, tuple[Consumer, threading.Thread]] = {}

    def join(self, name: str, topic: str, expression: str) -> None:
        connection = self._coordinator.connection
        consumer = Consumer(
            self._group_id,
            {topic: expression},
            connection.bootstrap,
            client_id=f"{name}-{self._group_id}",
            consume_from="first",
            prefix=connection.topics.prefix,
        )
        thread = threading.Thread(target=consumer.run, args=(self._handle,), kwargs={"on_error": "raise"})
        thread.start()
        self._members[name] = consumer, thread
        size = len(self._members)
        wait_until(
            lambda: (
                sorted(len(one.assignment()) for one, _ in self._members.values()) in ([4], [2, 2], [1, 1, 2])
                and len(self._members) == size
            ),
            "the queues are shared",
        )

    def leave(self, name: str) -> None:
        consumer, thread = self._members.pop(name)
        consumer.stop()
        thread.join(PATIENCE_S)
        consumer.close()

    def send(self, topic: str, count: int) -> None:
        producer = self._coordinator.connection.producer()
        for _ in range(count):
            number = len(self.sent)
            tag = TAGS[number % 3]
            self.sent.append(f"{tag} {number}")
            producer.produce(topic, self.sent[-1], partition=number // 3 % 4, headers=headers_of(tag, {}))
        assert producer.flush(PATIENCE_S) == 0

    def close(self) -> None:
        for name in list(self._members):
            self.leave(name)

    def _handle(self, messages: list[Message]) -> None:
        with self._lock:
            self.processed.update((message.value() or b"").decode() for message in messages)


@pytest.fixture
def group(coordinator, group_id) -> Iterator[Group]:
    """A group of a coordinator at the newest level."""
    coordinator.everywhere(Level(level=feature_levels.NEWEST), new_signer(key_to_sign(DEV_KEYS, "operator")))
    wait_until(lambda: set(coordinator.levels.values()) == {feature_levels.NEWEST}, "the level is raised")
    group = Group(coordinator, group_id)
    yield group
    group.close()


def test_a_filter_that_is_widened_in_a_rolling_deployment_loses_and_repeats_nothing(coordinator, group):
    """The earlier members read on, commit, and leave; those that come later find what was kept for them."""
    topic = coordinator.topic(4)
    group.join("v1-a", topic, "paid")
    group.join("v1-b", topic, "paid")
    group.send(topic, 600)
    group.join("v2-a", topic, "paid || refunded")
    first = len(group.sent)
    group.send(topic, 900)
    group.leave("v1-a")
    group.send(topic, 600)
    group.join("v2-b", topic, "paid || refunded")
    group.leave("v1-b")
    owed = {
        value
        for number, value in enumerate(group.sent)
        if value.startswith("paid") or (value.startswith("refunded") and number >= first)
    }
    wait_until(
        lambda: owed <= group.processed.keys(), "all is processed", state=lambda: len(owed - group.processed.keys())
    )

    assert set(group.processed.values()) == {1}
    assert not any(value.startswith("shipped") for value in group.processed)
