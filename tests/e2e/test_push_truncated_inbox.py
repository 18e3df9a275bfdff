"""Push consumption when records of the inbox are deleted, as by a retention that is too short."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Message, TopicPartition

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll_model.decisions import Assignment
from wakeroll_model.partitioner import partition_of

pytestmark = pytest.mark.e2e

SESSION_MS = 10_000


def _handle(bootstrap: str, prefix: str, group_id: str, client_id: str, topic: str, log: Path, orderly: bool) -> None:
    """Handle messages one at a time, and write down each before and after it is handled."""
    with log.open("a", buffering=1) as file:

        def handle(messages: list[Message]) -> None:
            [message] = messages
            file.write(f"{message.partition()} {message.offset()} {time.monotonic()}\n")
            time.sleep(0.002)

        with Consumer(
            group_id,
            [topic],
            bootstrap,
            client_id=client_id,
            consume_from="first",
            prefix=prefix,
            commit_interval=0.2,
            orderly=orderly,
        ) as consumer:
            signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
            consumer.run(handle, workers=2, batch_size=1)


class Worker:
    """A process with one consumer."""

    def __init__(
        self,
        coordinator: Coordinator,
        group_id: str,
        client_id: str,
        topic: str,
        folder: Path,
        *,
        orderly: bool = False,
    ) -> None:
        self.client_id = client_id
        self._log = folder / client_id
        self._log.touch()
        names = (coordinator.connection.bootstrap, coordinator.connection.topics.prefix, group_id, client_id, topic)
        self.process = multiprocessing.get_context("spawn").Process(target=_handle, args=(*names, self._log, orderly))
        self.process.start()

    @property
    def handled(self) -> list[tuple[int, int, float]]:
        """Queue number, offset and time of each call."""
        lines = [line.split() for line in self._log.read_text().splitlines() if line.count(" ") == 2]
        return [(int(number), int(offset), float(at)) for number, offset, at in lines]

    def send(self, number: int) -> None:
        """Send the process a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        """Kill it, unless it has ended."""
        self.process.kill()
        self.process.join()


def truncate_inbox(coordinator: Coordinator) -> None:
    """Delete all records of the inbox."""
    admin, topic = coordinator.connection.admin(), coordinator.connection.topics.inbox
    partitions = len(admin.list_topics(topic, 30).topics[topic].partitions)
    ends = [TopicPartition(topic, partition, -1) for partition in range(partitions)]  # -1: up to the end
    for deleted in admin.delete_records(ends).values():
        deleted.result(60)


def instances(coordinator: Coordinator, client_id: str) -> list[str]:
    """Return the instances with which a client was a member, in order."""
    return list(dict.fromkeys(beat.instance_id for beat in coordinator.beats(client_id)))


def revocations(coordinator: Coordinator, client_id: str) -> list[Assignment]:
    """Return the assignments that revoke queues of a client."""
    return [
        decision
        for decision in tuple(coordinator.decided)
        if isinstance(decision, Assignment) and decision.client_id == client_id and decision.revoke
    ]


def handled_by(*workers: Worker) -> list[tuple[int, int]]:
    """Return queue number and offset of each call, sorted."""
    return sorted((number, offset) for worker in workers for number, offset, _ in worker.handled)


def all_of(queues: int, messages: int) -> list[tuple[int, int]]:
    """Return queue number and offset of each message."""
    return [(number, offset) for number in range(queues) for offset in range(messages)]


def neighbour_of(coordinator: Coordinator, client_id: str) -> str:
    """Return another client_id, whose decisions are in the same partition of the inbox."""
    inbox = coordinator.connection.topics.inbox
    partitions = len(coordinator.connection.admin().list_topics(inbox, 30).topics[inbox].partitions)
    home = partition_of(client_id.encode(), partitions)
    names = (f"neighbour-{number}" for number in range(10_000))
    return next(name for name in names if partition_of(name.encode(), partitions) == home)


@pytest.fixture
def start(coordinator, group_id, tmp_path) -> Iterator[Callable[..., Worker]]:
    """Starts a process with a consumer of a topic."""
    coordinator.configure(group_id, session_timeout_ms=SESSION_MS, heartbeat_ms=500)
    with ExitStack() as stack:

        def start(topic: str, name: str, **more: bool) -> Worker:
            worker = Worker(coordinator, group_id, f"{name}-{group_id}", topic, tmp_path, **more)
            stack.callback(worker.end)
            return worker

        yield start


def test_a_member_whose_unread_inbox_was_deleted_stays_a_member(coordinator, group_id, start):
    """Nothing that was deleted was for it. If it waited for these records, it would drop its queues after a session."""
    topic = coordinator.topic(2)
    for partition in range(2):
        coordinator.produce(topic, partition, 500)
    member = start(topic, "a")
    wait_until(lambda: len(member.handled) > 100, "it is at work")
    neighbour = neighbour_of(coordinator, member.client_id)
    member.send(signal.SIGSTOP)
    for _ in range(50):
        coordinator.tell(neighbour, b"{}")
    truncate_inbox(coordinator)
    member.send(signal.SIGCONT)
    beats = len(coordinator.beats(member.client_id))
    two_sessions = 2 * SESSION_MS // 500 + 10
    wait_until(lambda: len(coordinator.beats(member.client_id)) > beats + two_sessions, "two sessions pass")
    for partition in range(2):
        coordinator.produce(topic, partition, 500)
    wait_until(lambda: coordinator.offsets(group_id, topic) == {0: 1_000, 1: 1_000}, "all is committed")

    assert len(instances(coordinator, member.client_id)) == 1
    assert handled_by(member) == all_of(2, 1_000)


@pytest.mark.parametrize(
    "orderly", [pytest.param(False, id="any order"), pytest.param(True, id="in order", marks=pytest.mark.operate)]
)
def test_a_member_that_never_receives_a_revocation_releases_its_queues_within_a_session(
    coordinator, group_id, start, orderly
):
    """The record was deleted while it was frozen. The coordinator repeats the assignment after its next heartbeat."""
    topic = coordinator.topic(4)
    for partition in range(4):
        coordinator.produce(topic, partition, 2_500)
    first = start(topic, "a", orderly=orderly)
    wait_until(lambda: len(first.handled) > 200, "it is at work")
    first.send(signal.SIGSTOP)
    second = start(topic, "b", orderly=orderly)
    wait_until(lambda: revocations(coordinator, first.client_id), "queues of the first one are revoked")
    truncate_inbox(coordinator)
    first.send(signal.SIGCONT)
    wait_until(lambda: len({number for number, _, _ in second.handled}) >= 2, "the second one has its share")
    ends = dict.fromkeys(range(4), 2_500)
    wait_until(
        lambda: coordinator.offsets(group_id, topic) == ends,
        "all is committed",
        state=lambda: str(coordinator.offsets(group_id, topic)),
    )

    assert handled_by(first, second) == all_of(4, 2_500)
    assert len(instances(coordinator, first.client_id)) == 1


@pytest.mark.operate
def test_consumers_come_and_go_while_the_inbox_is_deleted_again_and_again(coordinator, group_id, start):
    """A reader at the end of its partition has lost nothing, and receives what comes."""
    topic = coordinator.topic(4)
    for partition in range(4):
        coordinator.produce(topic, partition, 2_500)
    workers = []
    for name in ("a", "b", "c"):
        workers.append(worker := start(topic, name))
        truncate_inbox(coordinator)
        wait_until(lambda worker=worker: worker.handled, f"{name} is at work")
        truncate_inbox(coordinator)
    workers[0].send(signal.SIGTERM)
    truncate_inbox(coordinator)
    ends = dict.fromkeys(range(4), 2_500)
    wait_until(lambda: coordinator.offsets(group_id, topic) == ends, "all is committed")
    workers[0].process.join(60)

    assert workers[0].process.exitcode == 0
    assert handled_by(*workers) == all_of(4, 2_500)
    assert [len(instances(coordinator, worker.client_id)) for worker in workers] == [1, 1, 1]
