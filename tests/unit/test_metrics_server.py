"""The HTTP server of a process, by real requests over loopback."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import wait_until
from wakeroll.errors import InvalidUsage
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.metrics import metrics_server
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.metrics_server import metrics_served

Get = Callable[[str], tuple[int, str]]


def free_port() -> int:
    """Return a port below those of outgoing connections: a connection of another test must not get it meanwhile."""
    [port] = free_ports(1)
    return port


def ask(port: int, path: str, address: str = "127.0.0.1", method: str = "GET") -> tuple[int, str]:
    with closing(HTTPConnection(address, port, timeout=10)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def answers(port: int) -> bool:
    try:
        return ask(port, "/healthz")[0] == 200
    except (HTTPException, ConnectionError):
        return False


@pytest.fixture
def health() -> Health:
    return Health("no tick was appended")


@pytest.fixture
def port(health: Health) -> Iterator[int]:
    registry = CollectorRegistry()
    Counter("wakeroll_answers", "Answers.", registry=registry).inc(42)
    port = free_port()
    with metrics_served(registry, health, "127.0.0.1", port):
        yield port


def test_metrics_have_help_and_type(port):
    status, body = ask(port, "/metrics")
    family = {family.name: family for family in text_string_to_metric_families(body)}["wakeroll_answers"]

    assert status == 200
    assert (family.type, family.documentation) == ("counter", "Answers.")
    assert [(sample.name, sample.value) for sample in family.samples if sample.name.endswith("_total")] == [
        ("wakeroll_answers_total", 42)
    ]


def test_probes_have_the_reason_in_the_body(port, health):
    assert ask(port, "/healthz") == (200, "alive: starting or stopping; no loop runs\n")
    assert ask(port, "/readyz") == (503, "not ready: no tick was appended\n")

    health.ready()
    assert ask(port, "/readyz") == (200, "ready\n")


def test_another_path_names_the_paths_that_exist(port):
    assert ask(port, "/metricz") == (404, "there is no '/metricz'; there are: /metrics, /healthz, /readyz\n")


def test_only_reading_is_possible(port):
    assert ask(port, "/metrics", method="POST")[0] == 405


def test_clients_that_send_slowly_do_not_keep_a_probe_from_its_answer(port):
    """Otherwise eight of them would have a healthy coordinator restarted."""
    slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(40)]
    for client in slow:
        with suppress(ConnectionError):
            client.sendall(b"GET /")

    assert all(ask(port, "/healthz")[0] == 200 for _ in range(20))
    for client in slow:
        client.close()


def test_a_head_that_does_not_end_is_given_up(port, monkeypatch):
    """Each byte comes in time, and there is always one more."""
    monkeypatch.setattr(metrics_server, "_SLOWEST_S", 0.2)
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.sendall(b"GET /healthz HTTP/1.1\r\nX-Name: ")

    def is_closed() -> bool:
        try:
            client.sendall(b"x")
        except ConnectionError:
            return True
        return False

    wait_until(is_closed, "the server closes the connection")
    client.close()


def test_clients_that_take_metrics_slowly_do_not_keep_a_probe_from_its_answer(monkeypatch):
    monkeypatch.setattr(metrics_server._Handler, "timeout", 300)  # none is given up while others are being answered
    registry = CollectorRegistry()
    large = Gauge("wakeroll_large", "More than the buffers of a socket hold.", ["name"], registry=registry)
    for number in range(4_000):
        large.labels(f"{number:04}" + "x" * 4_000)
    with metrics_served(registry, Health(""), "127.0.0.1", port := free_port()):
        slow = [socket.create_connection(("127.0.0.1", port), timeout=10) for _ in range(metrics_server._SCRAPES)]
        for client in slow:
            client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_until(lambda: ask(port, "/metrics")[0] == 503, "all answers of /metrics are taken")

        assert ask(port, "/healthz")[0] == 200
        for client in slow:
            client.close()


def test_a_client_that_does_not_take_its_answer_leaves_no_traceback(monkeypatch, capfd, caplog):
    """Its thread ends, and the log of the process stays readable."""
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.05)
    caplog.set_level("DEBUG", "wakeroll.metrics")
    registry = CollectorRegistry()
    large = Gauge("wakeroll_large", "More than the buffers of a socket hold.", ["name"], registry=registry)
    for number in range(4_000):
        large.labels(f"{number:04}" + "x" * 4_000)
    with metrics_served(registry, Health(""), "127.0.0.1", port := free_port()):
        client = socket.create_connection(("127.0.0.1", port), timeout=10)
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        wait_until(lambda: "TimeoutError" in caplog.text, "the server gives up")
        client.close()

    assert "Traceback" not in capfd.readouterr().err


def test_a_port_in_use_is_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(InvalidUsage) as told,
            metrics_served(CollectorRegistry(), Health(""), "127.0.0.1", port),
        ):
            pass

    assert str(told.value) == (
        f"cannot expose metrics on 127.0.0.1:{port}: Address already in use; choose another metrics_port (each process "
        "of a machine needs its own) or metrics_address, or metrics_port 0 for none"
    )


def test_an_address_of_another_machine_is_a_sentence():
    with (
        pytest.raises(
            InvalidUsage, match=r"cannot expose metrics on 192\.0\.2\.1:9464: .*; choose another metrics_port"
        ),
        metrics_served(CollectorRegistry(), Health(""), "192.0.2.1", 9464),
    ):
        pass


def test_an_address_may_be_ipv6():
    with metrics_served(CollectorRegistry(), Health("x"), "::1", port := free_port()):
        assert ask(port, "/readyz", "::1") == (503, "not ready: x\n")


def test_port_0_exposes_nothing():
    with metrics_served(CollectorRegistry(), Health(""), "no.such.host.invalid", 0):
        pass


def test_the_port_is_free_after_the_process_stopped(health):
    port = free_port()
    for _ in range(2):
        with metrics_served(CollectorRegistry(), health, "127.0.0.1", port):
            assert ask(port, "/healthz")[0] == 200
