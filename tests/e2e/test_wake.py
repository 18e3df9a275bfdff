"""`wakeroll wake` as a process, on a real broker: workers run while there is something to read, and only then."""

import json
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic

from tests.support.systems.coordinator_thread import Coordinator
from tests.support.systems.decision_sink import Sink
from tests.support.waiting import wait_until
from wakeroll import Consumer
from wakeroll_model.events import Pull
from wakeroll_pipeline.local.child_process import Child

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("sink")]

PATIENCE_S = 120.0
WORKER = """
import os, sys, time
from wakeroll import Consumer

log, bootstrap, prefix, topic, idle_s = sys.argv[1:6]
log = open(log, "a", buffering=1)
print("started", os.getpid(), os.environ.get("WOKEN_QUEUES"), file=log)
how = {"prefix": prefix, "consume_from": "first", "commit_interval": 0.2}
with Consumer(os.environ["WOKEN_GROUP"], [topic], bootstrap, **how) as consumer:
    idle_since = time.monotonic()
    while time.monotonic() - idle_since < float(idle_s):
        if not consumer.assignment():
            idle_since = time.monotonic()
        if (message := consumer.poll(0.1)) is not None:
            print("read", message.partition(), message.offset(), file=log)
            idle_since = time.monotonic()
print("ended", os.getpid(), file=log)
"""


@pytest.fixture(scope="module", autouse=True)
def observer(coordinator: Coordinator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """The real observer: it sees that queues have grown."""
    connection = coordinator.connection
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]
    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", *where]
    with Child("the observer", argv, log=tmp_path_factory.mktemp("observer") / "observer.log") as observer:
        yield observer


class Workers:
    """A topic, the log of the workers that were started for it, and the wakers."""

    def __init__(self, coordinator: Coordinator, group_id: str, folder: Path) -> None:
        self.group_id = group_id
        self.topic = coordinator.topic(2, is_pulled=False)
        self._log = folder / "workers.log"
        self._folder = folder
        self._coordinator = coordinator
        self.wakers: list[Child] = []
        connection = coordinator.connection
        self.where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]
        script = folder / "worker.py"
        script.write_text(WORKER)
        words = [sys.executable, script, self._log, connection.bootstrap, connection.topics.prefix, self.topic]
        self.command = shlex.join(map(str, words))
        coordinator.configure(group_id, session_timeout_ms=10_000, heartbeat_ms=1_000)
        coordinator.configure(f"wake.{group_id}", session_timeout_ms=10_000, heartbeat_ms=1_000)

    def wake(self, *options: str, idle_s: float = 2.0) -> Child:
        """Start one more waker."""
        number = len(self.wakers)
        how = () if "--http" in options else ("--exec", f"{self.command} {idle_s}")
        argv = [sys.executable, "-m", "wakeroll_pipeline.cli", "wake", self.group_id, *how, *options]
        waker = Child(f"waker {number}", [*argv, *self.where], log=self._folder / f"waker-{number}.log")
        self.wakers.append(waker)
        waker.start()
        return waker

    def join_and_leave(self, sink: Sink) -> None:
        """Have a member join and leave: the group is known to have none then."""
        connection = self._coordinator.connection
        with Consumer(
            self.group_id, [self.topic], connection.bootstrap, prefix=connection.topics.prefix, consume_from="first"
        ) as consumer:
            wait_until(lambda: len(consumer.assignment()) == 2, "it has joined", between=lambda: consumer.poll(0.05))
        sink.wait_until_left(consumer.client_id)

    def send(self, count: int = 1, number: int = 0) -> None:
        """Append messages."""
        self._coordinator.produce(self.topic, number, count)

    def lines(self, what: str) -> list[list[str]]:
        """Return the words of the log's lines of this kind."""
        text = self._log.read_text() if self._log.exists() else ""
        return [line.split()[1:] for line in text.splitlines() if line.startswith(what)]

    def read(self) -> list[tuple[int, int]]:
        """Return queue number and offset of all messages that workers received."""
        return [(int(number), int(offset)) for number, offset in self.lines("read")]

    def wait_for(self, done: Callable[[], object], what: str) -> None:
        """Wait for a condition; if it does not come true, show the logs."""
        logs = [self._log, *(self._folder / f"waker-{number}.log" for number in range(len(self.wakers)))]
        wait_until(done, what, state=lambda: "\n".join(log.read_text() for log in logs if log.exists()))

    def is_asleep(self) -> bool:
        """Whether all started workers have ended and left."""
        return len(self.lines("started")) == len(self.lines("ended")) and not self._coordinator.members(self.group_id)

    def close(self) -> None:
        """Stop the wakers."""
        for waker in self.wakers:
            waker.stop()


@pytest.fixture
def workers(coordinator: Coordinator, sink: Sink, group_id: str, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(coordinator, group_id, tmp_path)
    workers.join_and_leave(sink)
    yield workers
    workers.close()


def test_a_worker_that_does_not_run_is_woken_by_one_message_and_sleeps_again(coordinator, workers):
    workers.wake()
    workers.wait_for(lambda: coordinator.members(f"wake.{workers.group_id}"), "the waker is there")
    assert workers.lines("started") == []

    for count in (1, 2, 3):
        workers.send(number=count % 2)
        workers.wait_for(lambda count=count: len(workers.read()) == count and workers.is_asleep(), "it was handled")
        assert len(workers.lines("started")) == count
    assert sorted(workers.read()) == [(0, 0), (1, 0), (1, 1)]
    assert coordinator.offsets(workers.group_id, workers.topic) == {0: 1, 1: 2}


@pytest.mark.operate
def test_a_group_that_never_ran_is_woken_too(coordinator, group_id, tmp_path):
    """Its topics are named, and its first messages count."""
    workers = Workers(coordinator, group_id, tmp_path)
    workers.send(3)
    workers.wake("--topic", workers.topic)

    workers.wait_for(lambda: len(workers.read()) == 3 and workers.is_asleep(), "all were handled")
    workers.close()


def test_a_worker_that_is_killed_is_started_again_when_its_session_has_ended(coordinator, workers):
    workers.wake(idle_s=60.0)
    workers.send(5)
    workers.wait_for(lambda: len(workers.read()) == 5, "the first worker has read")
    workers.wait_for(
        lambda: coordinator.offsets(workers.group_id, workers.topic).get(0) == 5, "the first worker has committed"
    )
    os.kill(int(workers.lines("started")[0][0]), signal.SIGKILL)
    workers.send(5)

    workers.wait_for(lambda: {offset for _, offset in workers.read()} == set(range(10)), "a second worker has read")
    assert len(workers.lines("started")) == 2
    assert "signal 9" in workers.wakers[0].log_tail()


def test_of_two_wakers_one_wakes_and_the_other_takes_over(coordinator, workers):
    workers.wake()
    workers.wake()
    workers.wait_for(lambda: len(coordinator.members(f"wake.{workers.group_id}")) == 2, "both wakers are there")
    workers.send()
    workers.wait_for(lambda: len(workers.read()) == 1 and workers.is_asleep(), "it was handled")
    assert len(workers.lines("started")) == 1

    first = next(waker for waker in workers.wakers if "started process" in waker.log_tail())
    first.kill()
    workers.send()
    workers.wait_for(lambda: len(workers.read()) == 2 and workers.is_asleep(), "the other waker took over")
    assert len(workers.lines("started")) == 2


@pytest.mark.operate
def test_a_worker_per_queue(workers):
    workers.send(200, number=0)
    workers.send(200, number=1)
    workers.wake("--workers", "5", idle_s=8.0)

    workers.wait_for(lambda: len(set(workers.read())) == 400 and workers.is_asleep(), "all was handled")
    assert len(workers.lines("started")) == 2


@pytest.mark.operate
def test_a_command_that_fails_is_repeated_with_growing_pauses(workers):
    workers.command = f"{sys.executable} -c 'import sys; sys.exit(3)'"
    waker = workers.wake("--longest-backoff", "2")
    workers.send()

    workers.wait_for(lambda: waker.log_tail().count("failed; no other one") >= 3, "it was repeated")
    log = waker.log_tail()
    assert "ended with status 3" in log
    assert re.findall(r"no other one is started for (\d+) s", log)[:3] == ["1", "2", "2"]


def test_a_request_is_sent_and_counts_until_the_worker_has_left(workers, tmp_path):
    """The server starts the worker; one request at a time, however long the worker takes."""
    bodies: list[dict[str, object]] = []
    children: list[Child] = []

    class Platform(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            environment = os.environ | {"WOKEN_GROUP": workers.group_id}
            words = [*shlex.split(workers.command), "2.0"]
            children.append(Child("worker", words, log=tmp_path / f"worker-{len(children)}.log", env=environment))
            children[-1].start()
            self.send_response(202)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Platform)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        workers.wake("--http", f"http://127.0.0.1:{server.server_port}/start")
        for count in (1, 2):
            workers.send(number=1)
            workers.wait_for(lambda count=count: len(workers.read()) == count and workers.is_asleep(), "it was handled")
        assert bodies == [{"group": workers.group_id, "queues": [{"topic": workers.topic, "queue_id": 1}]}] * 2
    finally:
        server.shutdown()
        server.server_close()
        for child in children:
            child.stop()


def test_an_idle_waker_asks_seldom(coordinator, workers):
    """One pull per queue, held by the coordinator; no message is read and Kafka is not polled for them."""
    waker = workers.wake()
    workers.wait_for(
        lambda: sum(isinstance(event, Pull) and event.queue.topic == workers.topic for event in coordinator.heard) == 2,
        "a pull per queue",
    )
    assert waker.is_running


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ([], "name either --exec or --http"),
        (["--exec", "true", "--http", "http://x"], "name either --exec or --http"),
        (["--exec", "no-such-program x"], "there is no program 'no-such-program'"),
        (["--exec", "'"], "it must be quoted as in a shell"),
        (["--http", "file:///etc/passwd"], "it must begin with http:// or https://"),
        (["--http", "http://x", "--timeout", "5"], "--timeout is for --exec"),
        (["--exec", "true"], "has no committed offsets; is the name correct?"),
    ],
)
def test_a_mistake_gets_a_sentence(coordinator, wakeroll, options, sentence):
    connection = coordinator.connection
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]

    code, _, complaint = wakeroll("wake", "nobody", *options, *where)

    assert code == 2
    assert sentence in " ".join(complaint.split())


def test_a_broadcasting_group_is_refused(coordinator, sink, group_id, wakeroll):
    """Each of its clients has to read every message, so no worker stands for another."""
    connection = coordinator.connection
    topic = coordinator.topic(1)
    with Consumer(
        group_id, [topic], connection.bootstrap, prefix=connection.topics.prefix, mode="broadcasting"
    ) as consumer:
        wait_until(consumer.assignment, "it has joined", between=lambda: consumer.poll(0.05))
    sink.wait_until_left(consumer.client_id)
    where = ["--bootstrap", connection.bootstrap, "--prefix", connection.topics.prefix]

    code, _, complaint = wakeroll("wake", group_id, "--exec", "true", "--topic", topic, *where)

    assert code == 2
    assert "is broadcasting" in " ".join(complaint.split())


@pytest.mark.operate
def test_a_waker_goes_on_when_the_topic_of_its_lease_is_deleted(coordinator, workers):
    """The lease is a queue of the group's first topic; without it, no waker would wake for the other topics."""
    first = f"a-{workers.topic}"
    brokers = coordinator.connection.admin()
    brokers.create_topics([NewTopic(first, 1, 1)])[first].result(PATIENCE_S)
    waker = workers.wake("--topic", first, "--topic", workers.topic)
    workers.wait_for(lambda: "has the lease" in waker.log_tail(), "the waker has the lease")

    brokers.delete_topics([first])[first].result(PATIENCE_S)
    workers.wait_for(lambda: "another process may wake" in waker.log_tail(), "the lease is gone")
    workers.send()

    workers.wait_for(lambda: len(workers.read()) == 1 and workers.is_asleep(), "it was handled")


@pytest.mark.operate
def test_a_waker_that_was_frozen_for_longer_than_its_session_wakes_again(coordinator, workers):
    """A machine was suspended: the waker returns to its group, and the messages of that time are read."""
    waker = workers.wake()
    workers.wait_for(lambda: "has the lease" in waker.log_tail(), "the waker has the lease")
    os.kill(waker.pid, signal.SIGSTOP)
    try:
        workers.wait_for(lambda: not coordinator.members(f"wake.{workers.group_id}"), "its session has ended")
        workers.send()
    finally:
        os.kill(waker.pid, signal.SIGCONT)

    workers.wait_for(lambda: len(workers.read()) == 1 and workers.is_asleep(), "it was handled")


def test_a_waker_and_its_workers_end_at_sigterm(workers):
    waker = workers.wake(idle_s=300.0)
    workers.send()
    workers.wait_for(lambda: len(workers.read()) == 1, "a worker runs")
    worker = int(workers.lines("started")[0][0])

    began = time.monotonic()
    waker.stop()

    assert time.monotonic() - began < 45.0
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
