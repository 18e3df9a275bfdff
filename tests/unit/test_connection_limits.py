"""Clients that open connections of the page and send nothing, or never the end of a request."""

import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry

from tests.support.running_processes import ROOT
from tests.support.systems.web_site import answering
from tests.support.waiting import wait_until
from wakeroll.connection import Topics
from wakeroll_pipeline.live.live_model import LiveModel, ViewSource
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports
from wakeroll_pipeline.serve import connection_limits
from wakeroll_pipeline.serve.web_app import WebApp


@pytest.fixture
def page() -> Iterator[tuple[str, int]]:
    """The address of a page without groups."""
    source = ViewSource(LiveModel(Topics(), 4))
    with answering(WebApp(source, CollectorRegistry(), ["127.0.0.1"])) as address:
        parts = urlsplit(address)
        yield parts.hostname or "", parts.port or 0


def status(page: tuple[str, int]) -> int:
    with urlopen(f"http://{page[0]}:{page[1]}/healthz", timeout=30) as answer:
        return int(answer.status)


def is_closed(client: socket.socket) -> bool:
    """Whether the server has closed a connection; it sends nothing, for no request was complete."""
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_idle_connections_do_not_keep_others_out(page, monkeypatch):
    """Each costs a file descriptor; a thousand of them stopped the page, and filled its log."""
    monkeypatch.setattr(connection_limits, "MAX_CONNECTIONS", 20)
    idle = [socket.create_connection(page, timeout=30) for _ in range(60)]
    for client in idle:
        client.settimeout(0.05)
    for client in idle[::2]:
        client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Name: ")

    assert [status(page) for _ in range(5)] == [200] * 5
    wait_until(lambda: sum(map(is_closed, idle)) >= 40, "the oldest idle connections are closed")
    for client in idle:
        client.close()


def test_a_head_that_does_not_end_is_given_up(page, monkeypatch):
    monkeypatch.setattr(connection_limits, "HEAD_S", 0.2)
    client = socket.create_connection(page, timeout=10)
    client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nX-Name: ")

    def breaks() -> bool:
        try:
            client.sendall(b"x")
        except ConnectionError:
            return True
        return False

    wait_until(breaks, "the server closes the connection")
    client.close()


def test_the_limit_leaves_room_for_other_files(monkeypatch):
    monkeypatch.setattr(connection_limits.resource, "getrlimit", lambda _: (256, 4_096))

    assert connection_limits.most_connections() == 128


def test_many_connections_at_once_leave_no_line_in_the_log(tmp_path):
    """A process that may open few files: asyncio accepts all that wait before it looks at the first one."""
    [port] = free_ports(1)
    serve = [sys.executable, "-m", "wakeroll_pipeline.cli", "serve", "--bootstrap", "127.0.0.1:1", "--port", str(port)]
    command = ["sh", "-c", f"ulimit -n 256; exec {shlex.join([*serve, '--home', str(tmp_path)])}"]
    with Child("serve", command, log=tmp_path / "serve.log", env=dict(os.environ), folder=ROOT) as child:
        page = (HOST, port)
        wait_until(lambda: answers(page), "the page answers", state=child.log_tail)
        idle = []
        for _ in range(500):
            with suppress(OSError):
                idle.append(socket.create_connection(page, timeout=10))

        assert [status(page) for _ in range(3)] == [200] * 3
        for client in idle:
            client.close()
        child.stop()
        assert "Traceback" not in child.log_tail(lines=1_000)


def answers(page: tuple[str, int]) -> bool:
    """Whether the process listens already."""
    try:
        return status(page) == 200
    except OSError:
        return False
