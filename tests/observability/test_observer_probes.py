"""Probes and metrics of a real observer, while its broker comes and goes."""

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.waiting import wait_until
from wakeroll.connection import Connection, Topics
from wakeroll_pipeline.kafka.control_topics import ensure_topics
from wakeroll_pipeline.local.broker import EmbeddedBroker
from wakeroll_pipeline.local.child_process import Child
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.spark.jars import ensure_jars

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:  # it does not listen yet
        return 0, ""


def value(port: int, name: str, **labels: str) -> float:
    """Return the sum of the samples of a metric that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(get(port, "/metrics")[1])
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def test_a_broker_that_is_away_is_no_reason_to_restart_an_observer(tmp_path):
    """A probe that ends it would not repair the broker, and the observer goes on by itself when the broker is back."""
    ensure_jars()
    broker = EmbeddedBroker(tmp_path / "broker")
    [port] = free_ports(1)
    with broker:
        connection = Connection(broker.bootstrap, topics=Topics("probed"))
        command = [sys.executable, "-m", "wakeroll_pipeline.cli", "observe", "--bootstrap", broker.bootstrap]
        command += ["--prefix", "probed", "--metrics-port", str(port)]
        observer = Child("observer", command, log=tmp_path / "observer.log", env=dict(os.environ), folder=ROOT)
        observer.start()
        try:
            no_topics = (503, "not ready: no broker has acknowledged a tick yet\n")
            wait_until(lambda: get(port, "/readyz") == no_topics, "it answers", state=observer.log_tail)
            ensure_topics(connection)
            wait_until(lambda: get(port, "/readyz") == (200, "ready\n"), "it is ready", state=observer.log_tail)

            broker.stop()
            lost = {"record": "tick", "cause": "_MSG_TIMED_OUT"}
            wait_until(
                lambda: value(port, "wakeroll_observer_failed_deliveries_total", **lost) > 0,
                "ticks are lost",
                state=observer.log_tail,
            )
            assert get(port, "/healthz")[0] == 200
            ticks = value(port, "wakeroll_observer_ticks_total")

            broker.start()
            wait_until(
                lambda: value(port, "wakeroll_observer_ticks_total") > ticks,
                "ticks are appended again",
                state=observer.log_tail,
            )
            assert get(port, "/healthz")[0] == 200
        finally:
            observer.stop()
    assert get(port, "/healthz")[0] == 0
