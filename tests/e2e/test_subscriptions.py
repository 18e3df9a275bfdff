"""Members that change their topics while messages flow, on a real broker, with the real machine as coordinator."""

import threading
from collections import Counter

import pytest

from tests.support.systems.coordinator_thread import PATIENCE_S, Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer

pytestmark = pytest.mark.e2e

QUEUES = 4


def test_a_group_moves_from_one_topic_to_another_member_by_member(coordinator: Coordinator, group_id):
    """No message of either topic is lost, and none comes twice: every queue has one owner at any time."""
    connection = coordinator.connection
    producer = connection.producer()
    former, later = coordinator.topic(QUEUES), coordinator.topic(QUEUES)
    seen: Counter[str] = Counter()
    lock = threading.Lock()

    def handle(messages) -> None:
        with lock:
            seen.update((one.value() or b"").decode() for one in messages)

    def send(number: int) -> None:
        for topic in (former, later):
            producer.produce(topic, f"{topic} {number}", partition=number % QUEUES)
        assert producer.flush(PATIENCE_S) == 0  # the pace of the broker: members read meanwhile

    def member(topics: list[str]) -> tuple[Consumer, threading.Thread]:
        consumer = Consumer(
            group_id, topics, connection.bootstrap, prefix=connection.topics.prefix, consume_from="first"
        )
        thread = threading.Thread(target=consumer.run, args=(handle,))
        thread.start()
        return consumer, thread

    members = [member([former]), member([former])]
    sent = 0
    try:
        wait_until(lambda: all(consumer.assignment() for consumer, _ in members), "both have queues")
        for consumer, _ in members:
            consumer.subscribe([later])
            topics = {later}
            while {queue.topic for queue in consumer.assignment()} != topics:
                send(sent := sent + 1)
            send(sent := sent + 1)
        members.append(member([former]))  # what the group had not processed when its last member left the topic
        wanted = {f"{topic} {number}" for topic in (former, later) for number in range(1, sent + 1)}
        wait_until(lambda: seen.keys() == wanted, "all is read", state=lambda: f"{sorted(wanted - seen.keys())[:5]}")
    finally:
        for consumer, thread in members:
            consumer.stop()
            thread.join()
            consumer.close()

    assert set(seen.values()) == {1}
