"""What push consumption survives: a process that is frozen for longer than its session, and a fork."""

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Message

from tests.support.systems.coordinator_thread import Coordinator, plane_of_its_own
from tests.support.waiting import wait_until
from wakeroll import Consumer, InvalidUsage, Retry, origin_of

pytestmark = pytest.mark.e2e

WORKERS = 4
MESSAGES = 1_500
"""Per queue."""


def _handle_slowly(bootstrap: str, prefix: str, group_id: str, topic: str, log: Path) -> None:
    """Handle messages one at a time, and write down each before it is handled."""
    with log.open("a", buffering=1) as file:

        def handle(messages: list[Message]) -> None:
            [message] = messages
            file.write(f"{message.partition()} {message.offset()} {time.time()}\n")
            time.sleep(0.02)

        with Consumer(
            group_id, [topic], bootstrap, consume_from="first", prefix=prefix, commit_interval=0.1
        ) as consumer:
            consumer.run(handle, workers=WORKERS, batch_size=1)


def entries(log: Path) -> list[tuple[int, int, float]]:
    """Return queue number, offset and time of each call."""
    lines = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 2]
    return [(int(number), int(offset), float(at)) for number, offset, at in lines]


@pytest.mark.operate
def test_a_process_that_was_frozen_for_longer_than_its_session_begins_none_of_the_messages_that_it_had(
    coordinator, group_id, tmp_path
):
    """It had read hundreds ahead; its session ended, and another member has its queues. It notices before each call."""
    coordinator.configure(group_id, session_timeout_ms=10_000, heartbeat_ms=500)
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, MESSAGES)
    names = (coordinator.connection.bootstrap, coordinator.connection.topics.prefix, group_id, topic)
    context = multiprocessing.get_context("spawn")
    frozen_log, other_log = tmp_path / "frozen", tmp_path / "other"
    frozen_log.touch()
    other_log.touch()
    frozen = context.Process(target=_handle_slowly, args=(*names, frozen_log))
    frozen.start()
    try:
        wait_until(lambda: len(entries(frozen_log)) > 200, "the first process is at work")
        os.kill(frozen.pid, signal.SIGSTOP)
        before = len(entries(frozen_log))
        other = context.Process(target=_handle_slowly, args=(*names, other_log))
        other.start()
        wait_until(lambda: {number for number, _, _ in entries(other_log)} == {0, 1}, "the other has both queues")
        continued_at = time.time()
        os.kill(frozen.pid, signal.SIGCONT)
        everything = {(number, offset) for number in range(2) for offset in range(MESSAGES)}

        def handled() -> set[tuple[int, int]]:
            return {(number, offset) for number, offset, _ in entries(frozen_log) + entries(other_log)}

        wait_until(lambda: handled() == everything, "every message is handled", state=lambda: len(handled()))
    finally:
        for process in (frozen, other):
            process.kill()
            process.join()

    assert before > 200
    by_other = {(number, offset): at for number, offset, at in entries(other_log)}
    late = [
        (number, offset)
        for number, offset, at in entries(frozen_log)
        if at > continued_at and by_other.get((number, offset), at) < at
    ]
    # A call may have passed the check in the moment in which the process was frozen: one per worker.
    assert len(late) <= WORKERS, late


@pytest.mark.operate
def test_while_messages_fail_broker_and_coordinator_end_and_come_back_and_none_is_lost(tmp_path):
    """Failed messages that Kafka has not acknowledged are sent again; until then, no commit passes them."""
    processed: dict[tuple[int, int], int] = {}
    lock = threading.Lock()

    def handle(messages: list[Message]) -> object:
        [origin] = map(origin_of, messages)
        time.sleep(0.005)
        if origin.attempt == 1 and origin.offset % 2 == 0:
            return Retry(level=1)
        with lock:
            place = origin.partition, origin.offset
            processed[place] = processed.get(place, 0) + 1
        return None

    with plane_of_its_own(tmp_path) as (broker, coordinator):
        topic = coordinator.topic(2)
        for partition in range(2):
            coordinator.produce(topic, partition, 600)
        with Consumer("billing", [topic], broker.bootstrap, consume_from="first", commit_interval=0.1) as consumer:
            settings = {"batch_size": 1, "workers": WORKERS}
            thread = threading.Thread(target=consumer.run, args=(handle,), kwargs=settings, daemon=True)
            thread.start()
            wait_until(lambda: len(processed) > 100, "the consumer is at work")
            broker.kill()
            time.sleep(2.0)  # an outage has a length
            broker.start()
            everything = {(number, offset) for number in range(2) for offset in range(600)}
            done = len(processed)
            wait_until(lambda: len(processed) > done + 100, "it goes on")
            coordinator.stop()
            successor = Coordinator(coordinator.connection)
            successor.start()
            wait_until(lambda: set(processed) == everything, "every message is processed", state=lambda: len(processed))
            wait_until(lambda: successor.offsets("billing", topic) == {0: 600, 1: 600}, "all is committed")
            assert thread.is_alive()
            consumer.stop()
            thread.join()
        successor.stop()


def test_a_forked_process_cannot_run_its_parents_consumer(coordinator, group_id):
    topic = coordinator.topic(1)
    consumer = Consumer(
        group_id, [topic], coordinator.connection.bootstrap, prefix=coordinator.connection.topics.prefix
    )
    reader, writer = os.pipe()
    child = os.fork()
    if not child:  # only what cannot fail: this is a copy of the test's process
        try:
            consumer.run(lambda _: None)
        except InvalidUsage as refused:
            os.write(writer, str(refused).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 1_000).decode()
    os.close(reader)
    os.close(writer)

    assert f"was created in process {os.getpid()}" in said
    thread = threading.Thread(target=consumer.run, args=(lambda _: None,), daemon=True)
    thread.start()
    wait_until(consumer.assignment, "the parent goes on")
    consumer.stop()
    thread.join()
    consumer.close()
