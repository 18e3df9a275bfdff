"""The Node.js client in `examples/node`, written from docs/protocol.md alone, is a member beside Python consumers."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll_model.decisions import Handover
from wakeroll_pipeline.local.child_process import Child

pytestmark = pytest.mark.e2e

SOURCE = Path(__file__).parents[2] / "examples" / "node"
OLDEST_NODE = (20, 19)
SESSION_MS = 10_000
INSTALL_S = 300
NO_NETWORK = "ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ENETUNREACH|ETIMEDOUT|ENOTCACHED"
"""npm's codes for a registry that cannot be reached."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The client with its packages, which npm downloads in the versions of `package-lock.json`."""
    missing = [program for program in ("node", "npm") if shutil.which(program) is None]
    if missing:
        pytest.skip(f"not installed: {' and '.join(missing)}; the Node.js client needs both")
    version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_NODE:
        pytest.skip(f"Node.js is {version}; the client needs 20.19 or later")
    folder = tmp_path_factory.mktemp("node") / "client"
    shutil.copytree(SOURCE, folder, ignore=shutil.ignore_patterns("node_modules"))
    command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
    installed = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if re.search(NO_NETWORK, installed.stderr):
        pytest.skip(f"npm cannot download the packages of the Node.js client: {installed.stderr[-500:]}")
    assert installed.returncode == 0, installed.stderr
    return folder


class NodeClient:
    """A process of the client; its log has one line per message, and lines for people."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.child.start()

    @property
    def lines(self) -> list[str]:
        """All complete lines so far."""
        return self.child.log.read_text(encoding="utf-8").split("\n")[:-1] if self.child.log.exists() else []

    @property
    def offsets(self) -> dict[int, list[int]]:
        """Queue number -> offsets of the messages that it printed, in this order."""
        found = defaultdict(list)
        for message in (json.loads(line) for line in self.lines if line.startswith("{")):
            found[message["partition"]].append(message["offset"])
        return found

    def taken(self) -> int:
        """Return how many messages it printed."""
        return sum(line.startswith("{") for line in self.lines)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.child.log_tail()


class PythonClient:
    """A consumer of the SDK; it polls while a test waits."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.offsets: dict[int, list[int]] = defaultdict(list)

    @property
    def queues(self) -> list[int]:
        """The numbers of its queues."""
        return [queue.queue_id for queue in self.consumer.assignment()]

    def taken(self) -> int:
        """Return how many messages it was handed."""
        return sum(map(len, self.offsets.values()))

    def poll(self) -> None:
        """Take one message."""
        message = self.consumer.poll(0.02)
        if message is not None:
            self.offsets[message.partition()].append(message.offset())

    def poll_until(self, done: Callable[[], object], what: str, node: NodeClient | None = None) -> None:
        """Poll until something is so."""

        def state() -> tuple[object, ...]:
            return self.queues, self.taken(), node and (node.taken(), node.tail())

        wait_until(done, what, between=self.poll, state=state)


@pytest.fixture
def start_node(coordinator, group_id, folder, tmp_path) -> Iterator[Callable[..., NodeClient]]:
    """Start Node.js clients that are stopped after the test."""
    number = count()
    with ExitStack() as stack:

        def start(topic: str, *options: str) -> NodeClient:
            connection = coordinator.connection
            place = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]
            argv = ["node", str(folder / "consumer.mjs"), group_id, topic, *place, "--from", "first", *options]
            client = NodeClient(Child("node", argv, log=tmp_path / f"node-{next(number)}.log", folder=folder))
            stack.callback(client.child.kill)
            return client

        yield start


@pytest.fixture
def join(coordinator, group_id) -> Iterator[Callable[[str], PythonClient]]:
    """Make Python consumers that are closed after the test."""
    with ExitStack() as stack:

        def make(topic: str) -> PythonClient:
            connection = coordinator.connection
            prefix = connection.topics.prefix
            settings = {"prefix": prefix, "consume_from": "first", "commit_interval": 0.2}
            consumer = Consumer(group_id, [topic], connection.bootstrap, **settings)
            stack.callback(consumer.close)
            consumer.join()
            return PythonClient(consumer)

        yield make


@pytest.fixture
def topic(coordinator, group_id) -> str:
    """A topic of four queues; the group has the shortest session."""
    coordinator.configure(group_id, session_timeout_ms=SESSION_MS, heartbeat_ms=500)
    return coordinator.topic(4)


def produce(coordinator, topic: str, count: int) -> None:
    """Append messages to each of the four queues."""
    for partition in range(4):
        coordinator.produce(topic, partition, count)


def together(*clients: NodeClient | PythonClient) -> dict[int, list[int]]:
    """Return what these received, sorted: queue number -> offsets."""
    return {number: sorted(offset for one in clients for offset in one.offsets[number]) for number in range(4)}


def each_queue(offsets: list[int]) -> dict[int, list[int]]:
    return dict.fromkeys(range(4), offsets)


def is_stopped(pid: int) -> bool:
    """Whether a process has received SIGSTOP."""
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.startswith("T")


def handovers(coordinator, group_id: str) -> dict[int, list[Handover]]:
    """Return the history of each queue."""
    found = defaultdict(list)
    for one in coordinator.decided:
        if isinstance(one, Handover) and one.group_id == group_id:
            found[one.queue.queue_id].append(one)
    return found


def test_its_partitioner_is_that_of_the_protocol(folder):
    """The values of docs/protocol.md: with another partitioner, the coordinator would reject every record."""
    code = "import { murmur2 } from '@platformatic/kafka'; console.log(murmur2('foobar'), murmur2('billing') >>> 0)"
    command = ["node", "--input-type=module", "--eval", code]
    printed = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout

    foobar, billing = map(int, printed.split())
    assert (foobar, (billing & 0x7FFFFFFF) % 4) == (-790332482, 1)


def test_it_shares_the_queues_with_a_python_consumer(coordinator, group_id, topic, start_node, join):
    """Every message is received once, both commit, and a queue changes hands only by a release."""
    produce(coordinator, topic, 1_000)
    python = join(topic)
    python.poll_until(lambda: python.taken() > 100, "the Python consumer reads")
    node = start_node(topic)
    python.poll_until(lambda: len(python.queues) == 2, "the Python consumer has released two queues", node)
    produce(coordinator, topic, 1_000)
    python.poll_until(lambda: python.taken() + node.taken() >= 8_000, "all messages are received", node)
    ends = dict.fromkeys(range(4), 2_000)
    python.poll_until(lambda: coordinator.offsets(group_id, topic) == ends, "both have committed", node)

    assert together(python, node) == each_queue(list(range(2_000)))
    assert len(python.queues) == 2
    for history in handovers(coordinator, group_id).values():
        assert {one.how for one in history} <= {"first", "released"}
        assert all(before.to == after.from_ for before, after in pairwise(history))


def test_after_a_clean_end_its_queues_are_continued_without_a_repetition(
    coordinator, group_id, topic, start_node, join
):
    """It ends while messages arrive, and with fetched messages in memory."""
    python, node = join(topic), start_node(topic)
    python.poll_until(lambda: len(coordinator.members(group_id)) == 2, "both are members", node)
    python.poll_until(lambda: len(python.queues) == 2, "each has two queues", node)
    traffic = threading.Thread(target=produce, args=(coordinator, topic, 20_000))
    traffic.start()
    python.poll_until(lambda: node.taken() > 100, "the Node.js client reads", node)

    assert node.child.stop(60) == 0
    traffic.join()
    left = node.taken()
    python.poll_until(lambda: python.taken() + left >= 80_000, "the Python consumer received the rest", node)

    assert left < 40_000
    assert together(python, node) == each_queue(list(range(20_000)))


@pytest.mark.operate
def test_when_it_is_killed_nothing_is_lost(coordinator, group_id, topic, start_node, join):
    """The end of its session frees its queues; what it had not committed is delivered again."""
    produce(coordinator, topic, 20_000)
    node = start_node(topic)
    wait_until(lambda: node.taken() > 0, "the Node.js client reads", state=node.tail)
    node.child.kill()
    printed = node.taken()
    python = join(topic)
    ends = dict.fromkeys(range(4), 20_000)
    python.poll_until(lambda: coordinator.offsets(group_id, topic) == ends, "everything is committed", node)

    assert printed < 80_000
    assert {number: sorted(set(offsets)) for number, offsets in together(python, node).items()} == each_queue(
        list(range(20_000))
    )


@pytest.mark.operate
def test_after_a_pause_longer_than_its_session_it_hands_out_nothing_before_it_has_noticed(
    coordinator, group_id, topic, start_node, join
):
    """It is stopped with fetched messages in memory, and another client has its queues when it continues.

    The stop may fall between its check and its output: one message may follow.
    """
    produce(coordinator, topic, 20_000)
    node = start_node(topic)
    wait_until(lambda: node.taken() > 0, "the Node.js client reads", state=node.tail)
    os.kill(node.child.pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(node.child.pid), "the Node.js client is stopped", state=node.tail)
    before = len(node.lines)
    assert node.taken() < 80_000
    python = join(topic)
    python.poll_until(lambda: len(python.queues) == 4, "the Python consumer has all queues", node)
    os.kill(node.child.pid, signal.SIGCONT)
    over = "is over: its session has ended"
    python.poll_until(lambda: any(line.endswith(over) for line in node.lines), "the Node.js client has noticed", node)
    ends = dict.fromkeys(range(4), 20_000)
    python.poll_until(lambda: coordinator.offsets(group_id, topic) == ends, "everything is committed", node)

    [noticed] = [number for number, line in enumerate(node.lines) if line.endswith(over)]
    in_hand = [line for line in node.lines[before:noticed] if line.startswith("{")]
    assert len(in_hand) <= 1, "only what it had handed out when it was stopped"
    received = together(python, node)
    assert {number: sorted(set(offsets)) for number, offsets in received.items()} == each_queue(list(range(20_000)))


@pytest.mark.operate
def test_a_second_process_with_its_client_id_ends_with_a_clear_message(topic, start_node, coordinator):
    produce(coordinator, topic, 10)
    one = start_node(topic, "--client-id", f"c-{topic}")
    wait_until(lambda: one.taken() == 40, "the first process reads", state=one.tail)
    two = start_node(topic, "--client-id", f"c-{topic}")
    wait_until(lambda: two.child.poll() is not None, "the second process has ended", state=two.tail)

    assert two.child.returncode == 1
    assert two.taken() == 0
    assert two.lines[-1] == f"c-{topic}: another live process uses the client_id c-{topic}"
    assert any(line.startswith("rejected (in-use): ") for line in two.lines)
    produce(coordinator, topic, 10)
    wait_until(lambda: one.taken() == 80, "the first process still reads", state=one.tail)
