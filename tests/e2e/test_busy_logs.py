"""Logs that grow all the time: what reads one to its end, ends."""

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from tests.support.waiting import wait_until
from wakeroll.connection import close_producer
from wakeroll.keys import key_to_sign, new_signer
from wakeroll_model.decisions import Cause, Membership
from wakeroll_model.events import Tick
from wakeroll_model.replay import encode_decision
from wakeroll_model.signing import DEV_KEYS
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.observer.ticks import newest_tick
from wakeroll_pipeline.recovery.decided_eras import headers_since, highest_numbers
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

PERIOD_S = 0.02
"""Kafka's client reports the end of a log when nothing was appended for half a second."""


@pytest.fixture
def settings(broker) -> Settings:
    settings = Settings(bootstrap=broker.bootstrap, prefix=f"busy-{uuid.uuid4().hex[:6]}")
    ensure_topics(settings.connection)
    return settings


@contextmanager
def growing(settings: Settings, topic: str, value: Callable[[int], bytes]) -> Iterator[list[int]]:
    """Append `value(n)` for n = 1, 2, ... to partition 0 of a topic, until the end of the block."""
    stop, count = threading.Event(), [0]
    producer = settings.connection.producer()

    def append() -> None:
        while not stop.wait(PERIOD_S):
            count[0] += 1
            producer.produce(topic, value(count[0]), partition=0)
            producer.poll(0)
        close_producer(producer, 10)

    thread = threading.Thread(target=append)
    thread.start()
    try:
        wait_until(lambda: count[0] > 50, "the log has records")
        yield count
    finally:
        stop.set()
        thread.join()


def decision(number: int) -> bytes:
    made = Membership(
        shard="groups-0.1",
        seq=number,
        cause=Cause("groups", 0, number),
        at_ms=1_000,
        group_id="billing",
        client_id="",
        change="joined",
        epoch=1,
    )
    return encode_decision(made)


def test_the_decisions_of_a_busy_shard_are_read_to_their_end(settings):
    """A replica that starts beside a working coordinator once waited for minutes until nothing was published."""
    with growing(settings, settings.connection.topics.decisions, decision) as count:
        before = count[0]
        found = list(headers_since(settings, {}))
        ended = count[0]
        highest = highest_numbers(settings)["groups-0"]

    assert [one.seq for one in found] == list(range(1, len(found) + 1))
    assert before - 50 < len(found) <= ended
    assert ended - before < 1_000, "reading ended while the log grew"
    assert highest >= (1, len(found))


def test_the_newest_tick_of_a_busy_log_is_found(settings):
    topic = settings.connection.topics.queues
    signer = new_signer(key_to_sign(DEV_KEYS, "observer"))

    def tick(_: int) -> bytes:
        return signer.sign(topic, 0, None, msgspec.json.encode(Tick()), end=0)

    with growing(settings, topic, tick):
        found = newest_tick(settings.connection, DEV_KEYS)

    assert found is not None
    assert found.problem == ""
