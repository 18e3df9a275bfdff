"""Push consumption while the observer, a process of its own, dies and comes back."""

import os
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import NewPartitions, NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer, Retry, origin_of
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.child_process import Child

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


class Runner:
    """A consumer that runs a handler in a thread; each tenth message fails at its first attempt."""

    def __init__(self, connection: Connection, group_id: str, topic: str, processed: Counter[tuple[int, int]]) -> None:
        self._consumer = Consumer(
            group_id,
            [topic],
            connection.bootstrap,
            consume_from="first",
            prefix=connection.topics.prefix,
            commit_interval=0.2,
        )
        self.client_id = self._consumer.client_id
        self._processed = processed
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._consumer.run, args=(self._handle,), kwargs={"batch_size": 1})
        self.thread.start()

    def close(self) -> None:
        self._consumer.stop()
        self.thread.join()
        self._consumer.close()

    def queues(self, topic: str) -> list[int]:
        """Return the numbers of the queues of a topic that it reads."""
        return [queue.queue_id for queue in self._consumer.assignment() if queue.topic == topic]

    def _handle(self, messages: list[Message]) -> Retry | None:
        [origin] = map(origin_of, messages)
        if origin.attempt == 1 and origin.offset % 10 == 0:
            return Retry(level=1)
        with self._lock:
            self._processed[origin.partition, origin.offset] += 1
        return None


@pytest.fixture
def coordinator(broker) -> Iterator[Coordinator]:
    """A coordinator that needs an observer."""
    connection = Connection(broker.bootstrap, topics=Topics(f"plane-{uuid.uuid4().hex[:6]}"))
    ensure_topics(connection)
    thread = Coordinator(connection, observes=False)
    thread.start()
    yield thread
    thread.stop()


@pytest.fixture
def observer(coordinator, tmp_path) -> Iterator[Child]:
    connection = coordinator.connection
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", "--bootstrap", connection.bootstrap]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WAKEROLL_")}
    with Child(
        "the observer",
        [*command, "--prefix", connection.topics.prefix],
        log=tmp_path / "observer.log",
        env=environment,
        folder=ROOT,
    ) as child:
        yield child


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "stopped"])
def test_consumers_go_on_without_the_observer_and_find_new_queues_when_it_is_back(coordinator, observer, group_id, end):
    """Without ticks, no session ends and nothing is reassigned; messages and commits need the broker only."""
    topic, admin = f"orders-{uuid.uuid4().hex[:6]}", coordinator.connection.admin()
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    processed: Counter[tuple[int, int]] = Counter()
    produced: Counter[int] = Counter()

    def produce(queues: int, count: int) -> None:
        producer = coordinator.connection.producer()  # a new one knows the new partitions
        for number in range(queues):
            for _ in range(count):
                producer.produce(topic, b"", partition=number)
            produced[number] += count
        assert producer.flush(PATIENCE_S) == 0

    def all_processed() -> bool:
        return processed.keys() == {(number, offset) for number in produced for offset in range(produced[number])}

    def wait(done: Callable[[], object], what: str) -> None:
        wait_until(done, what, state=lambda: f"{len(processed)} of {produced}; {observer.log_tail()}")

    with ExitStack() as stack:
        runners = [Runner(coordinator.connection, group_id, topic, processed) for _ in range(2)]
        for runner in runners:
            stack.callback(runner.close)
        produce(2, 200)
        wait(all_processed, "all messages are processed")
        wait(lambda: sorted(runner.queues(topic) for runner in runners) == [[0], [1]], "each has a queue")

        if end == signal.SIGKILL:
            observer.kill()
        else:
            observer.stop(PATIENCE_S)
        produce(2, 200)
        wait(all_processed, "messages go on without the observer")
        wait(lambda: coordinator.offsets(group_id, topic) == {0: 400, 1: 400}, "and so do commits")
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(PATIENCE_S)
        produce(4, 100)
        observer.start()
        produce(4, 100)
        wait(all_processed, "messages of the new queues are processed")
        ends = {0: 600, 1: 600, 2: 200, 3: 200}
        wait(lambda: coordinator.offsets(group_id, topic) == ends, "all is committed")
        wait(lambda: sorted(len(runner.queues(topic)) for runner in runners) == [2, 2], "the new queues are shared")
        members = coordinator.members(group_id)
        lives = [len({beat.instance_id for beat in coordinator.beats(runner.client_id)}) for runner in runners]

    assert set(processed.values()) == {1}, "nothing is processed twice"
    assert sorted(members) == sorted(runner.client_id for runner in runners)
    assert lives == [1, 1]
