"""What a process reports to systemd, on a real socket, with a clock under control."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.systems.notify_socket import NotifySocket
from wakeroll_pipeline.metrics.health import LOOP_TIMEOUT_S, Health
from wakeroll_pipeline.metrics.systemd_reports import Reports, reported_to_systemd


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Process:
    """A process whose unit has `WatchdogSec=120`, and what it sends."""

    def __init__(self, systemd: NotifySocket) -> None:
        self.clock = Clock()
        self.health = Health("no tick yet", self.clock, lapsed="no tick was acknowledged", lapse_s=15)
        self._systemd = systemd
        self._reports = Reports(systemd.address, self.health, self.health.readiness, 120, self.clock)

    def after(self, seconds: float) -> list[str]:
        """Return what it sends when the clock has advanced."""
        self.clock.now_s += seconds
        self._reports.send()
        return self._systemd.take()

    def close(self) -> None:
        self._reports.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    with NotifySocket(tmp_path / "notify") as systemd:
        process = Process(systemd)
        yield process
        process.close()


def test_a_process_is_ready_once_and_then_gives_signs_of_life(process: Process):
    starting = process.after(0)
    process.health.beat("ticker")
    process.health.ready()
    ready = process.after(1)
    soon, later = process.after(1), process.after(20)

    assert starting == ["STATUS=not ready: no tick yet"]
    assert ready == ["READY=1", "STATUS=ready", "WATCHDOG=1"]
    assert soon == []
    assert later == ["STATUS=not ready: no tick was acknowledged for 22 s", "WATCHDOG=1"]


def test_brokers_that_are_away_are_no_reason_to_end_the_process(process: Process):
    """Its loops go on, and its status says what it waits for; a restart would repair nothing."""
    process.health.ready()
    process.after(0)
    sent = []
    for _ in range(100):
        process.health.beat("ticker")
        process.health.awaits("no Kafka broker answered at kafka-1:9092")
        sent += process.after(60)

    assert sent.count("WATCHDOG=1") == 100
    assert "STATUS=not ready: no Kafka broker answered at kafka-1:9092" in sent


def test_a_loop_that_makes_no_round_ends_the_signs_of_life(process: Process):
    """Systemd ends the process then, and starts another one."""
    process.health.beat("ticker")
    process.health.beat("router")
    process.health.ready()
    process.after(0)
    process.clock.now_s += LOOP_TIMEOUT_S
    process.health.beat("router")
    process.health.ready()

    assert process.after(1) == []
    process.health.beat("ticker")
    assert process.after(1) == ["WATCHDOG=1"]


def test_a_start_has_more_time_for_each_round_of_a_loop(process: Process):
    """Brokers may come an hour later; but Spark's start has no rounds, and is ended if it hangs."""
    process.health.beat("start")
    process.health.awaits("no Kafka broker answered at kafka-1:9092")
    first = process.after(0)
    process.health.beat("start")
    waiting = process.after(20)
    process.health.begun("start")

    assert first == ["STATUS=not ready: no Kafka broker answered at kafka-1:9092", "EXTEND_TIMEOUT_USEC=900000000"]
    assert waiting == ["EXTEND_TIMEOUT_USEC=900000000"]
    assert process.after(20) == ["STATUS=not ready: no tick yet"]
    assert process.after(20) == []


def test_a_report_that_systemd_does_not_take_is_sent_again(process: Process, tmp_path: Path):
    """Systemd may be executed again, and has no socket for a moment."""
    process.health.ready()
    (tmp_path / "notify").rename(tmp_path / "away")
    lost = process.after(0)
    (tmp_path / "away").rename(tmp_path / "notify")

    assert lost == []
    assert process.after(0) == ["READY=1", "STATUS=ready", "WATCHDOG=1"]


def test_a_reason_that_counts_seconds_is_sent_now_and_then(process: Process):
    """Systemd would be woken each second during an outage."""
    sent = []
    for seconds in range(11):
        process.health.awaits(f"the brokers cannot be read for {seconds} s")
        sent += process.after(1)
    process.health.ready()

    assert sent == [f"STATUS=not ready: the brokers cannot be read for {seconds} s" for seconds in (0, 5, 10)]
    assert process.after(1) == ["READY=1", "STATUS=ready", "WATCHDOG=1"]


def test_a_status_has_one_line_and_an_end(process: Process):
    """A line that is not ours would be another report."""
    process.health.awaits("no broker\nREADY=1\n" + "x" * 1_000)

    [status] = process.after(0)
    assert status.startswith("STATUS=not ready: no broker READY=1 xxx")
    assert len(status) == len("STATUS=") + 500


def test_without_systemd_nothing_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A variable that is empty names no socket."""
    with NotifySocket(tmp_path / "notify") as systemd:
        monkeypatch.setenv("NOTIFY_SOCKET", "")
        with reported_to_systemd(Health("nothing")):
            pass
        assert systemd.take() == []
        monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
        with reported_to_systemd(Health("nothing")):
            pass
        assert systemd.take() == ["STATUS=not ready: nothing"]


def test_a_socket_may_be_in_the_abstract_namespace():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # Linux chooses a name
        listener.settimeout(10)
        name = listener.getsockname()
        health = Health("nothing")
        reports = Reports("@" + name[1:].decode(), health, health.readiness)
        reports.send()
        reports.close()

        assert listener.recv(4_096) == b"STATUS=not ready: nothing"
