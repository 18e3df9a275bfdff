"""Processes of the units in deploy/systemd, started as systemd does it, and what they report to it."""

import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.closed_port import closed_port
from tests.support.running_processes import ROOT
from tests.support.systems.notify_socket import NotifySocket
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e

Start = Callable[[str, int], Child]


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[NotifySocket]:
    with NotifySocket(tmp_path / "notify") as systemd:
        yield systemd


@pytest.fixture
def start(systemd: NotifySocket, tmp_path: Path) -> Start:
    """Describes the process of a unit, with a broker at a port, and a watchdog of 3 s."""

    def started(unit: str, broker_port: int) -> Child:
        text = (ROOT / "deploy" / "systemd" / f"wakeroll-{unit}.service").read_text(encoding="utf-8")
        [line] = re.findall(r"^ExecStart=/opt/wakeroll/bin/wakeroll (.+)$", text, flags=re.MULTILINE)
        [port] = free_ports(1)
        line = re.sub(r" --keys \S+", "", line)
        words = [str(port) if word == "8420" else word for word in shlex.split(line)]
        ours = {
            "NOTIFY_SOCKET": systemd.address,
            "WATCHDOG_USEC": "3000000",
            "WAKEROLL_BOOTSTRAP": f"{HOST}:{broker_port}",
            "WAKEROLL_HOME": str(tmp_path / "home"),
            "WAKEROLL_CHECKPOINTS": str(tmp_path / "checkpoints"),
            "WAKEROLL_METRICS_PORT": "0",
        }
        argv = [sys.executable, "-m", "wakeroll_pipeline.cli", *words]
        return Child(unit, argv, log=tmp_path / "log", env={**os.environ, **ours}, folder=ROOT, grace_s=90)

    return started


@pytest.mark.parametrize(
    ("unit", "status"),
    [
        ("observe", "STATUS=not ready: no broker has acknowledged a tick yet"),
        ("serve", "STATUS=the brokers cannot be read for "),
    ],
)
def test_a_process_without_brokers_says_what_it_waits_for_and_lives(
    systemd: NotifySocket, start: Start, unit: str, status: str
):
    """Systemd must not end it: it waits, and a restart would not bring the brokers back."""
    with closed_port() as port, start(unit, port) as process:
        wait_until(
            lambda: (
                systemd.take()
                and systemd.received.count("EXTEND_TIMEOUT_USEC=900000000") >= 3
                and any(one.startswith(status) for one in systemd.received)
            ),
            "it has more time again and again, and says why",
            state=lambda: (systemd.received[-9:], process.log_tail()),
        )

    assert "READY=1" not in systemd.received


@pytest.mark.operate
def test_run_has_started_when_it_is_ready_and_sends_keep_alives(systemd: NotifySocket, start: Start, tmp_path: Path):
    """It needs no port for its metrics to know that it is ready."""
    ensure_jars()
    [broker_port] = free_ports(1)

    def arrived(line: str, times: int = 1) -> bool:
        systemd.take()
        return systemd.received.count(line) >= times

    with start("run", broker_port) as run:

        def state() -> object:
            return systemd.received[-9:], run.log_tail()

        reason = "STATUS=not ready: no Kafka broker answered"
        wait_until(
            lambda: (
                arrived("EXTEND_TIMEOUT_USEC=900000000") and any(one.startswith(reason) for one in systemd.received)
            ),
            "it waits for a broker, and says so",
            state=state,
        )
        before = list(systemd.received)
        with EmbeddedBroker(tmp_path / "broker", port=broker_port):
            wait_until(lambda: arrived("READY=1"), "it is ready", patience_s=PATIENCE_WITH_SPARK_S, state=state)
            wait_until(lambda: arrived("WATCHDOG=1", times=3), "it sends keep-alives", state=state)
            run.stop()
            systemd.take()

    assert "READY=1" not in before
    assert "STATUS=not ready: the process is stopping" in systemd.received
