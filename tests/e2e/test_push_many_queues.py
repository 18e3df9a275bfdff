"""Push consumption with very many queues that one consumer has alone; 10,000 take minutes."""

import logging
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message
from confluent_kafka.admin import TopicMetadata

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll.connection import Connection
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker

pytestmark = [pytest.mark.e2e, pytest.mark.operate]

QUEUES = 1_000
"""Per topic."""
PATIENCE_S = 300.0
IDLE_S = 10.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def _handle(bootstrap: str, topics: list[str], log: Path, warnings: Path) -> None:
    """Write down each message and each warning."""
    logging.basicConfig(filename=warnings, level=logging.WARNING)
    with log.open("a", buffering=1) as file:

        def handle(messages: list[Message]) -> None:
            file.write("".join(f"{one.topic()} {one.partition()} {one.offset()}\n" for one in messages))

        with Consumer("billing", topics, bootstrap, consume_from="first", commit_interval=0.2) as consumer:
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            consumer.run(handle, workers=4)


def handled(log: Path) -> Counter[tuple[str, int, int]]:
    """Return topic, queue number and offset of each handled message."""
    lines = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 2]
    return Counter((topic, int(number), int(offset)) for topic, number, offset in lines)


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has used (s)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def memory_mib(pid: int) -> int:
    """Return the memory of a process (MiB)."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) // 1024


@pytest.mark.parametrize("count", [1, 10])
def test_one_consumer_reads_thousands_of_queues_and_leaves_in_time(tmp_path, count):
    """It prints memory, processor time while nothing comes, and the times until the first and the last message."""
    with EmbeddedBroker(tmp_path / "broker", heap="1g") as broker:
        connection = Connection(broker.bootstrap)
        ensure_topics(connection)
        coordinator = Coordinator(connection)
        coordinator.start()
        timer = _Timer()
        topics = [coordinator.topic(QUEUES, f"orders-{number}", is_pulled=False) for number in range(count)]
        admin = connection.admin()
        timer.wait(lambda: _are_there(admin.list_topics(timeout=60).topics, topics), "all topics have leaders")
        everything = {(topic, number, offset) for topic in topics for number in range(QUEUES) for offset in range(2)}
        first = {place for place in everything if place[2] == 0}
        _send(coordinator, topics)
        timer.say("one message per queue is produced")
        log, warnings = tmp_path / "log", tmp_path / "warnings"
        log.touch()
        arguments = (broker.bootstrap, topics, log, warnings)
        process = multiprocessing.get_context("spawn").Process(target=_handle, args=arguments)
        process.start()
        pid = process.pid
        assert pid is not None
        try:
            timer.wait(lambda: log.stat().st_size, "the first message is handled")
            timer.wait(lambda: handled(log).keys() == first, "a message of each queue is handled")
            timer.wait(lambda: _committed(coordinator, topics) == {1: count * QUEUES}, "all are committed")
            used_s, since = cpu_s(pid), time.monotonic()
            wait_until(lambda: time.monotonic() - since > IDLE_S, "some time passes", patience_s=2 * IDLE_S)
            share = (cpu_s(pid) - used_s) / (time.monotonic() - since)
            print(f"idle: {share:.1%} of a core, {memory_mib(pid)} MiB")
            _send(coordinator, topics)
            timer.say("one more message per queue is produced")
            timer.wait(lambda: handled(log).keys() == everything, "all are handled")
            timer.wait(lambda: _committed(coordinator, topics) == {2: count * QUEUES}, "all are committed")
            process.terminate()
            process.join(60)
            timer.say("it has ended")
            assert process.exitcode == 0
            timer.wait(lambda: coordinator.members("billing") == [], "it has left")
        finally:
            process.kill()
            process.join()
            coordinator.stop()

    assert set(handled(log).values()) == {1}, "nothing is handled twice"
    assert warnings.read_text() == "", "no query timed out, and it left the group in time"


class _Timer:
    """Prints how long each step took."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def wait(self, done: Callable[[], object], what: str) -> None:
        wait_until(done, what, patience_s=PATIENCE_S)
        self.say(what)

    def say(self, what: str) -> None:
        print(f"{time.monotonic() - self._since:6.1f} s: {what}")
        self._since = time.monotonic()


def _send(coordinator: Coordinator, topics: list[str]) -> None:
    lost: list[KafkaError] = []
    producer = coordinator.connection.producer(**{"linger.ms": 50})
    for topic in topics:
        for number in range(QUEUES):
            producer.produce(
                topic, b"", partition=number, on_delivery=lambda error, _: lost.append(error) if error else None
            )
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert lost == []


def _are_there(known: Mapping[str, TopicMetadata], topics: list[str]) -> bool:
    """Return whether each queue has a leader; the broker needs half a minute for so many."""
    return all(
        topic in known and sum(one.leader >= 0 for one in known[topic].partitions.values()) == QUEUES
        for topic in topics
    )


def _committed(coordinator: Coordinator, topics: list[str]) -> Counter[int]:
    """Return committed offset -> in how many queues."""
    return Counter(offset for topic in topics for offset in coordinator.offsets("billing", topic).values())
