"""Workers of a sleeping group as processes and requests: they end, all of them, and in bounded time."""

import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.support.waiting import wait_until
from wakeroll.wake import worker_starters
from wakeroll.wake.worker_starters import STUCK_S, CommandStarter, GroupSize, HttpStarter
from wakeroll_model.queue import Queue

QUEUE = Queue("orders", "", 0)
NOBODY = GroupSize(0, 0)


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_starters, "STOP_S", 0.5)
    monkeypatch.setattr(worker_starters, "REQUEST_S", 0.3)


def is_there(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(shown.strip()) and not shown.startswith("Z")


def test_a_worker_for_ten_thousand_queues_is_started():
    """Linux starts no process whose environment has a longer variable, so their group would never be woken."""
    queues = [Queue("orders." + "x" * 200, "", number) for number in range(10_000)]

    worker = CommandStarter("true", None).start("billing", queues, NOBODY)

    wait_until(lambda: worker.result(NOBODY) is not None, "it ended")
    assert worker.result(NOBODY) is True


def test_children_that_ignore_the_end_of_their_parent_are_killed(tmp_path):
    """A shell ends at SIGTERM at once; the worker that it started may go on and keep its queues."""
    pid = tmp_path / "pid"
    inner = f"trap : TERM; echo $$ > {pid}; while :; do sleep 0.05; done"
    worker = CommandStarter(f"""sh -c "sh -c '{inner}' & wait" """, None).start("billing", [QUEUE], NOBODY)
    wait_until(lambda: pid.exists() and pid.read_text().strip(), "the child runs")

    worker.stop()
    worker.wait()

    wait_until(lambda: not is_there(int(pid.read_text())), "the child has ended", patience_s=5.0)


def test_stubborn_workers_end_at_the_same_time():
    """Each has its time to end, but not one after the other: a thousand would take hours."""
    ignores = "sh -c 'trap : TERM; while :; do sleep 0.05; done'"
    stubborn = [CommandStarter(ignores, None).start("billing", [QUEUE], NOBODY) for _ in range(6)]
    time.sleep(0.2)
    began = time.monotonic()

    for worker in stubborn:
        worker.stop()
    for worker in stubborn:
        worker.wait()

    assert time.monotonic() - began < 2.0


class Platform(BaseHTTPRequestHandler):
    """Answers with the status in the path."""

    def do_POST(self) -> None:
        self.send_response(int(self.path[1:]))
        self.send_header("Location", "/200")
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Platform)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def outcome_of(url: str) -> bool | None:
    request = HttpStarter(url, lease=60.0).start("billing", [QUEUE], NOBODY)
    deadline = time.monotonic() + 2.0
    while (outcome := request.result(NOBODY)) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return outcome


@pytest.mark.parametrize(("status", "outcome"), [(202, None), (302, False), (303, False), (307, False), (500, False)])
def test_only_an_answer_to_the_request_itself_counts(server, status, outcome):
    """After a redirect the request would be repeated as GET, which starts nothing but is answered."""
    assert outcome_of(f"http://127.0.0.1:{server.server_port}/{status}") is outcome


def test_a_server_that_never_completes_its_answer_does_not_stop_the_wakes():
    """Each byte restarts the timeout of a read. The thread must not keep the waker from ending, either."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connected, _ = listening.accept()
            with connected:
                for _ in range(100):
                    try:
                        connected.sendall(b"H")
                    except OSError:
                        return
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()

        assert outcome_of(f"http://127.0.0.1:{listening.getsockname()[1]}/") is False
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("wake"))


def test_a_request_ends_although_no_decision_says_that_its_worker_is_gone(server):
    """A coordinator that lost its state forgets members without a decision."""
    request = HttpStarter(f"http://127.0.0.1:{server.server_port}/202", lease=60.0).start("b", [QUEUE], NOBODY)
    now = time.monotonic()
    wait_until(lambda: request._answer.done(), "it is answered")

    assert request.result(GroupSize(1, 1, now)) is None
    assert request.result(GroupSize(1, 1, now - STUCK_S - 1)) is True
