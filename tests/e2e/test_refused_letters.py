"""Failed messages that the retry topic or the dead letter topic does not take, on a real broker."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from threading import Thread

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer, WakerollError, origin_of
from wakeroll.failure_topics import ensure_failure_topics
from wakeroll.push import send_back
from wakeroll_model.retry_topics import DELAYS_S, dead_letter_topic_of, retry_topic_of

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
LARGE = b"x" * 30_000
LIMIT = "20000"
"""Largest message that the retry topic accepts (bytes): more than a small one with its headers."""


@pytest.fixture(autouse=True)
def sent_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send refused messages again each second, and not each half a minute."""
    monkeypatch.setattr(send_back, "HELD_AGAIN_S", 1.0)


@pytest.fixture
def consumer_of(coordinator: Coordinator, group_id: str) -> Iterator[Callable[..., Consumer]]:
    with ExitStack() as stack:

        def make(topic: str, **settings) -> Consumer:
            connection = coordinator.connection
            settings = {"consume_from": "first", "commit_interval": 0.2, "prefix": connection.topics.prefix, **settings}
            consumer = Consumer(group_id, [topic], connection.bootstrap, **settings)
            stack.callback(consumer.close)
            consumer.join()
            return consumer

        yield make


def set_in(coordinator: Coordinator, topic: str, **settings: str) -> None:
    """Change settings of a topic, as an operator does."""
    changes = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin = coordinator.connection.admin()
    wait_until(lambda: topic in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is there")
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)


class Running(Thread):
    """A member whose handler fails on every message at its first attempt."""

    def __init__(self, consumer: Consumer, fails: Callable[[Message], bool], **settings) -> None:
        super().__init__(daemon=True)
        self.processed: set[tuple[int, int]] = set()
        self.problem: BaseException | None = None
        self._consumer = consumer
        self._fails = fails
        self._settings = settings
        self.start()

    def run(self) -> None:
        try:
            self._consumer.run(self._handle, **self._settings)
        except BaseException as problem:
            self.problem = problem

    def _handle(self, messages: list[Message]) -> None:
        for message in messages:
            if self._fails(message):
                raise LookupError("no such order")
        self.processed.update((origin_of(message).partition, origin_of(message).offset) for message in messages)

    def stop(self) -> None:
        self._consumer.stop()
        self.join()


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_that_is_too_large_for_its_topic_waits_and_all_others_go_on(
    coordinator, consumer_of, group_id, caplog, orderly
):
    """It would end one member after the other otherwise; when the operator has raised the limit, it is stored."""
    topic = coordinator.topic(2)
    ensure_failure_topics(coordinator.connection, group_id, PATIENCE_S)
    refusing = dead_letter_topic_of(group_id) if orderly else retry_topic_of(group_id)
    set_in(coordinator, refusing, max_message_bytes=LIMIT)
    producer = coordinator.connection.producer()
    for partition in (0, 1):
        for at in range(40):
            is_large = partition == 0 and at == 5
            producer.produce(topic, LARGE if is_large else b"v", key=b"k", partition=partition)
    producer.flush(PATIENCE_S)

    def fails(message: Message) -> bool:
        place = origin_of(message).partition, origin_of(message).offset
        return place == (0, 5) or (place in ((0, 3), (0, 7)) and origin_of(message).attempt == 1 and not orderly)

    settings = {"max_retries": 0} if orderly else {"max_retries": 1}
    consumer = consumer_of(topic, orderly=orderly)
    assert consumer.refused() == 0
    running = Running(consumer, fails, batch_size=16, **settings)
    wait_until(lambda: coordinator.offsets(group_id, topic).get(1) == 40, "the other queue goes on")
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 5, "its own queue's offset stays before it")
    if not orderly:
        others = {(0, at) for at in range(40)} - {(0, 5)}
        wait_until(lambda: others <= running.processed, "others of its queue and key go on, also those that failed")
    wait_until(lambda: "cannot store the failed message 5" in caplog.text, "the log reports it")
    assert running.is_alive()
    assert coordinator.offsets(group_id, topic)[0] == 5
    assert consumer.refused() == 1

    set_in(coordinator, refusing, max_message_bytes="100000")
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 40, "it is stored")
    assert consumer.refused() == 0
    running.stop()

    assert running.problem is None
    [line, *_] = [record.message for record in caplog.records if "cannot store" in record.message]
    assert f"the failed message 5 of {topic}-0 in {refusing}: Broker: Message size too large" in line
    assert f"max.message.bytes of the topic is {LIMIT}; raise max.message.bytes. It waits in place" in line


def test_small_messages_that_are_too_large_only_together_are_stored(coordinator, consumer_of, group_id):
    """A broker refuses a batch of messages as a whole."""
    topic = coordinator.topic(1)
    ensure_failure_topics(coordinator.connection, group_id, PATIENCE_S)
    set_in(coordinator, retry_topic_of(group_id), max_message_bytes="2000")
    producer = coordinator.connection.producer()
    for _ in range(50):
        producer.produce(topic, b"x" * 500, partition=0)
    producer.flush(PATIENCE_S)

    running = Running(consumer_of(topic), lambda message: origin_of(message).attempt == 1, workers=2)
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 50, "all are stored in the retry topic")
    running.stop()

    assert running.problem is None


@pytest.mark.operate
def test_a_topic_that_is_deleted_meanwhile_is_created_again(coordinator, consumer_of, group_id):
    topic = coordinator.topic(1)
    running = Running(consumer_of(topic), lambda message: origin_of(message).attempt == 1)
    coordinator.produce(topic, 0, 1)
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 1, "the first is stored")
    retries = retry_topic_of(group_id)
    admin = coordinator.connection.admin()
    admin.delete_topics([retries])[retries].result(PATIENCE_S)
    wait_until(lambda: retries not in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is deleted")

    coordinator.produce(topic, 0, 1)
    wait_until(lambda: coordinator.offsets(group_id, topic).get(0) == 2, "the second is stored")
    running.stop()

    assert running.problem is None
    assert len(admin.list_topics(timeout=PATIENCE_S).topics[retries].partitions) == len(DELAYS_S)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"cleanup.policy": "compact"}, "has cleanup.policy=compact; it must be delete"),
        ({"cleanup.policy": "compact,delete"}, "has cleanup.policy=compact,delete; it must be delete"),
        ({"retention.ms": "7200000"}, "has retention.ms=7200000; it must be above 7200000, the longest delay"),
    ],
)
def test_a_topic_whose_settings_lose_messages_is_refused_at_the_start(
    coordinator, consumer_of, group_id, settings, sentence
):
    retries = retry_topic_of(group_id)
    new = NewTopic(retries, len(DELAYS_S), 1, config=settings)
    admin = coordinator.connection.admin()
    admin.create_topics([new])[retries].result(PATIENCE_S)
    wait_until(lambda: retries in admin.list_topics(timeout=PATIENCE_S).topics, "the topic is there")

    with pytest.raises(WakerollError) as refused:
        consumer_of(coordinator.topic(1)).run(lambda _: None)

    assert f"topic {retries} {sentence}" in str(refused.value)


def test_settings_that_refuse_or_delay_some_messages_are_said_at_the_start(coordinator, group_id, caplog):
    retries, letters = retry_topic_of(group_id), dead_letter_topic_of(group_id)
    topic = coordinator.topic(1)
    delayed = {"message.timestamp.type": "CreateTime", "retention.ms": "7200001", "max.message.bytes": "100000000"}
    new = [
        NewTopic(retries, len(DELAYS_S), 1, config=delayed),
        NewTopic(letters, 1, 1, config={"max.message.bytes": "9"}),
    ]
    admin = coordinator.connection.admin()
    for future in admin.create_topics(new).values():
        future.result(PATIENCE_S)
    wait_until(
        lambda: {retries, letters} <= admin.list_topics(timeout=PATIENCE_S).topics.keys(), "the topics are there"
    )

    ensure_failure_topics(coordinator.connection, group_id, PATIENCE_S, topics=[topic])

    said = [record.message for record in caplog.records if record.name == "wakeroll"]
    assert [line.partition(":")[0].partition(", and messages")[0] for line in said] == [
        f"topic {letters} has max.message.bytes=9",
        f"topic {retries} has retention.ms=7200001 and retention.bytes=-1",
        f"topic {retries} has message.timestamp.type=CreateTime",
    ]
