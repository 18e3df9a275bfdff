"""The memory of push consumption when the handler is slow: what docs/sdk.md states is the bound."""

import multiprocessing
import os
import sys
import threading
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.reader import QUEUED_KIB

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc"),
]

QUEUES = 64
MESSAGES = 2_500
"""Per queue."""
VALUE = b"x" * 1_000
PREFETCH = 1_000
PREFETCH_BYTES = 1024 * 1024
HALF = 500
"""Messages that a full queue has at least: it is read on while another half of its limits fits."""
MESSAGE_MIB = 0.5 / 1024
BOUND_MIB = QUEUES * (PREFETCH_BYTES / 2**20 + PREFETCH * MESSAGE_MIB) + 2 * QUEUED_KIB / 1024
SLACK_MIB = 24
"""For what Kafka's client adds to each message, for code that is used for the first time meanwhile, and fragments."""


def highest_mib() -> int:
    """Return the highest resident memory of this process so far (MiB)."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) // 1024


def consume_nothing(names: dict[str, str], group_id: str, topic: str, result: Path) -> None:
    """Run a handler that does not return until every queue is full, and write down by how much memory has grown."""
    begun, full = threading.Event(), threading.Event()

    def handle(_: list[Message]) -> None:
        begun.set()
        full.wait()

    def watch() -> None:
        begun.wait()
        lags: dict[int, int] = {}
        while len(lags) < QUEUES or max(lags.values()) > MESSAGES - HALF:
            lags = {queue.queue_id: lag for queue, lag in consumer.lag(60).items() if queue.topic == topic}
        result.write_text(f"{highest_mib() - before_mib}")
        os._exit(0)  # the messages are none of this test's business

    with Consumer(group_id, [topic], consume_from="first", **names) as consumer:
        before_mib = highest_mib()
        threading.Thread(target=watch, daemon=True).start()
        consumer.run(handle, prefetch=PREFETCH, prefetch_bytes=PREFETCH_BYTES)


def test_the_memory_of_a_slow_handler_is_bounded(coordinator, group_id, tmp_path):
    """With the settings that Kafka's client has by default, it takes 100 MiB more."""
    topic = coordinator.topic(QUEUES, f"large-{uuid.uuid4().hex[:6]}", is_pulled=False)
    producer = coordinator.connection.producer(**{"linger.ms": 20, "queue.buffering.max.messages": QUEUES * MESSAGES})
    for _ in range(MESSAGES):
        for number in range(QUEUES):
            producer.produce(topic, VALUE, partition=number)
        producer.poll(0)
    assert producer.flush(300) == 0
    names = {"bootstrap": coordinator.connection.bootstrap, "prefix": coordinator.connection.topics.prefix}
    result = tmp_path / "grown"
    arguments = (names, group_id, topic, result)
    process = multiprocessing.get_context("spawn").Process(target=consume_nothing, args=arguments)
    process.start()
    try:
        wait_until(lambda: not process.is_alive(), "every queue is full", patience_s=300)
    finally:
        process.kill()
        process.join()

    grown_mib = int(result.read_text())
    print(f"grown by {grown_mib} MiB; the bound is {BOUND_MIB:.0f} MiB")
    assert grown_mib <= BOUND_MIB + SLACK_MIB
