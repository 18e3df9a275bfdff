"""The whole system is started at once, and the brokers are the last to be there."""

import os
import sys
from pathlib import Path

import pytest

from tests.support.probes import probe
from tests.support.running_processes import ROOT
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e


@pytest.mark.operate
def test_run_waits_for_its_brokers_and_begins_by_itself(tmp_path: Path):
    """It is alive and not ready, says why, and is not started again by anybody."""
    ensure_jars()
    port, broker_port = free_ports(2)
    command = [sys.executable, "-m", "wakeroll_pipeline.cli", "run", "--bootstrap", f"127.0.0.1:{broker_port}"]
    command += ["--home", str(tmp_path / "home"), "--checkpoints", str(tmp_path / "checkpoints")]
    command += ["--metrics-port", str(port)]
    run = Child("run", command, log=tmp_path / "run.log", env=dict(os.environ), folder=ROOT, grace_s=90)
    with run:
        wait_until(
            lambda: probe(port, "/readyz").startswith(
                f"503 not ready: no Kafka broker answered at 127.0.0.1:{broker_port}"
            ),
            "it says what it waits for",
            state=run.log_tail,
        )
        alive = probe(port, "/healthz")
        with EmbeddedBroker(tmp_path / "broker", port=broker_port):
            wait_until(
                lambda: probe(port, "/readyz") == "200 ready\n",
                "it is ready",
                patience_s=PATIENCE_WITH_SPARK_S,
                state=run.log_tail,
            )
            pid = run.pid
            log = run.log_tail(lines=1_000)
            run.stop()

    assert alive.startswith("200 ")
    assert pid > 0
    assert log.count("waiting for it") == 1
    assert log.count("what this process waited for is there") == 1
