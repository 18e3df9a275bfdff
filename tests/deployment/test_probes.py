"""The probes of the manifests, answered by processes with the arguments and settings of the manifests."""

import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.closed_port import closed_port
from tests.support.manifests import Manifests
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import HOST, free_ports

pytestmark = pytest.mark.e2e

NOT_READY = {
    "observe": "not ready: no broker has acknowledged a tick yet",
    "serve": "no Kafka broker answered at 127.0.0.1:",
}


@pytest.fixture
def nobody() -> Iterator[int]:
    """The port of a broker that is away."""
    with closed_port() as port:
        yield port


@pytest.mark.parametrize("command", ["observe", "serve"])
def test_without_brokers_a_process_is_alive_and_gives_the_reason_why_it_is_not_ready(
    tmp_path: Path, nobody: int, command: str
):
    """A restart would not bring the brokers back; a pod that is not ready is seen in every list of pods."""
    manifests = Manifests.rendered("local-volume")
    [pod] = [pod for pod in manifests.processes if pod.command[0] == command]
    [port] = free_ports(1)
    ours = {"bootstrap": f"{HOST}:{nobody}", "metrics_port": port, "metrics_address": HOST, "home": tmp_path / "home"}
    ours |= {"work": tmp_path / "work"}
    environment = {**os.environ, **manifests.environment(pod)}
    environment |= {f"WAKEROLL_{name.upper()}": str(value) for name, value in ours.items()}
    for name in ("WAKEROLL_KAFKA_CONFIG", "WAKEROLL_KEYS"):
        del environment[name]
    words = [str(port) if word == "8420" else word for word in pod.command]

    def probe(kind: str) -> tuple[int, str]:
        path = pod.container[f"{kind}Probe"]["httpGet"]["path"]
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:  # it does not listen yet
            return 0, ""

    argv = [sys.executable, "-m", "wakeroll_pipeline.cli", *words]
    with Child(command, argv, log=tmp_path / "log", env=environment) as process:
        wait_until(lambda: probe("startup")[0] == 200, "it has started", state=process.log_tail)
        wait_until(lambda: NOT_READY[command] in probe("readiness")[1], "it gives the reason", state=process.log_tail)
        assert probe("readiness")[0] == 503
        # The probes are answered before the first round of a loop begins, and that is no reason to restart it either.
        wait_until(lambda: "alive: time since the last round of " in probe("liveness")[1], "a loop runs")
        assert probe("liveness")[0] == 200
