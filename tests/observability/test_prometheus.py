"""A real Prometheus scrapes a real system: every panel has an answer, and a dead observer fires its alert."""

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.systems.fleet import GROUP, QUEUES, Fleet
from tests.support.systems.prometheus_server import (
    INSTALLED,
    NOT_INSTALLED,
    Prometheus,
    dashboard_expressions,
    ports_in_a_row,
)
from tests.support.systems.web_site import served
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll import Admin

pytestmark = [
    pytest.mark.spark,
    pytest.mark.e2e,
    pytest.mark.prometheus,
    pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED),
]

WITHOUT_FAULTS = {"Failed deliveries per minute", "Errors of Kafka's clients per minute"}
"""Panels that are empty while nothing fails."""


class System(NamedTuple):
    fleet: Fleet
    prometheus: Prometheus
    ports: dict[str, int]


@pytest.fixture(scope="module")
def system(broker, tmp_path_factory) -> Iterator[System]:
    """Observer, both jobs, consumers of a topic with slices, the page, and a Prometheus that scrapes all of them."""
    folder = tmp_path_factory.mktemp("observed")
    first = ports_in_a_row(3)
    ports = {"wakeroll-run": first, "wakeroll-observe": first + 1, "wakeroll-serve": first + 2}
    with (
        Prometheus(folder / "prometheus", ports) as prometheus,
        Fleet(broker.bootstrap, folder, metrics_port=first, mirror_offsets=".*", upkeep_interval_ms=1_000) as fleet,
        served(fleet.settings, port=ports["wakeroll-serve"]),
    ):
        producer = fleet.settings.connection.producer()
        producer.produce(fleet.settings.connection.topics.groups, b"not json", partition=0)
        assert producer.flush(60) == 0
        # A queue that never had an owner is not handed over: only a member that leaves makes hand-overs.
        wait_until(
            lambda: count_of(ports["wakeroll-serve"], "wakeroll_decisions_total", kind="handover") >= QUEUES,
            "all queues are assigned",
            patience_s=PATIENCE_WITH_SPARK_S,
        )
        fleet.let_leave("c3")
        with Admin(broker.bootstrap, prefix=fleet.settings.prefix) as admin:
            admin.configure(GROUP, slices={fleet.topic: 2}, timeout=PATIENCE_WITH_SPARK_S)
        yield System(fleet, prometheus, ports)


def count_of(port: int, name: str, **labels: str) -> float:
    """Return the value of a counter that a process exposes; 0 if it has none with these labels."""
    families = text_string_to_metric_families(get(port, "/metrics")[1].decode())
    samples = (sample for family in families for sample in family.samples)
    return sum(sample.value for sample in samples if sample.name == name and labels.items() <= sample.labels.items())


def get(port: int, path: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.mark.parametrize("job", ["wakeroll-run", "wakeroll-observe"])
def test_each_process_becomes_ready_and_its_metrics_are_well_formed(system, job):
    port = system.ports[job]
    wait_until(lambda: get(port, "/readyz") == (200, b"ready\n"), f"{job} is ready", patience_s=PATIENCE_WITH_SPARK_S)

    status, body = get(port, "/healthz")
    assert (status, body[:6]) == (200, b"alive:")
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=get(port, "/metrics")[1], capture_output=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.parametrize(("title", "expression"), dashboard_expressions())
def test_every_series_of_the_dashboard_has_an_answer(system, title, expression):
    """A misspelt name or label would be an empty panel that looks like a quiet system."""
    ask = system.prometheus.ask
    if title in WITHOUT_FAULTS:
        ask(expression)  # it is a valid expression
    else:
        wait_until(lambda: ask(expression), f"{title} has a series", patience_s=PATIENCE_WITH_SPARK_S)


def test_what_the_driver_reports_agrees_with_what_it_did(system):
    """A figure that never moves would pass for a healthy one."""
    ask = system.prometheus.ask

    def value(expression: str) -> float:
        samples = ask(expression)
        return float(samples[0]["value"][1]) if samples else 0.0

    def wait_for(expression: str) -> None:
        wait_until(lambda: value(expression) > 0, expression, patience_s=PATIENCE_WITH_SPARK_S)

    wait_for('wakeroll_run_rejections_total{rule="json"}')
    wait_for('wakeroll_rejections_total{rule="json"}')
    wait_for('wakeroll_query_records_total{query="record"} > 100')
    wait_for('wakeroll_rebalances_total{group="billing",trigger="leave"}')
    wait_for("wakeroll_run_snapshots_total")
    wait_for('sum(wakeroll_upkeep_steps_total{outcome="success"})')
    wait_for("wakeroll_observer_routes_total")
    wait_for("wakeroll_observer_mirrored_offsets_total")
    wait_for("wakeroll_observer_mirrored_groups == 1")
    wait_for("wakeroll_observer_topics == 1")
    assert value("wakeroll_run_internal_failures_total") == 0


@pytest.mark.operate
def test_an_observer_that_is_killed_fires_its_alert_until_it_is_back(system):
    prometheus, observer = system.prometheus, system.fleet.system.observer
    wait_until(
        lambda: not prometheus.firing(), "all is well", state=prometheus.firing, patience_s=PATIENCE_WITH_SPARK_S
    )

    os.kill(observer.pid, signal.SIGKILL)
    wait_until(lambda: "WakerollObserverAbsent" in prometheus.firing(), "its alert fires", state=prometheus.firing)

    wait_until(lambda: not observer.is_running, "the process has ended")
    observer.start()
    wait_until(
        lambda: not prometheus.firing(), "its alert is over", state=prometheus.firing, patience_s=PATIENCE_WITH_SPARK_S
    )
