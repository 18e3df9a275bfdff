"""A real Prometheus with the real rules scrapes the metrics that processes expose: each alert finds its role."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from tests.support.systems.certificates import Authority
from tests.support.systems.prometheus_server import INSTALLED, NOT_INSTALLED, Prometheus
from tests.support.waiting import wait_until
from wakeroll_pipeline.local.ports import free_ports
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.metrics_server import metrics_served
from wakeroll_pipeline.metrics.process_metrics import ProcessMetrics

pytestmark = [pytest.mark.prometheus, pytest.mark.skipif(not INSTALLED, reason=NOT_INSTALLED)]


class Deployment:
    """One process per job, without work of its own: a test says which roles are ready."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        authority = {"ssl.ca.location": str(Authority(folder / "authority").certificate)}
        self.roles = {"wakeroll-run": {"coordinator": True, "recorder": True}, "wakeroll-observe": {"observer": True}}
        ports = dict(zip(self.roles, free_ports(len(self.roles)), strict=True))
        self._stacks = {job: stack.enter_context(ExitStack()) for job in ports}
        for job, port in ports.items():
            registry = CollectorRegistry()
            config = authority if job == "wakeroll-run" else {}
            ProcessMetrics(registry, lambda job=job: self.roles[job], {}, config)
            self._stacks[job].enter_context(metrics_served(registry, Health(""), "127.0.0.1", port))
        self.prometheus = stack.enter_context(Prometheus(folder / "prometheus", ports))

    def end(self, job: str) -> None:
        self._stacks[job].close()

    def await_alerts(self, *alerts: str) -> None:
        """Wait until these alerts fire, and no others."""
        wait_until(lambda: self.prometheus.firing() == set(alerts), f"{alerts} fire", state=self.prometheus.firing)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with ExitStack() as stack:
        yield Deployment(tmp_path, stack)


def test_an_absent_role_is_missed_although_its_process_answers(deployment: Deployment):
    """The authority of the tests ends in two days, which is an alert of its own."""
    deployment.await_alerts("WakerollCertificateEnds")

    deployment.roles["wakeroll-run"]["coordinator"] = False
    deployment.await_alerts("WakerollCertificateEnds", "WakerollCoordinatorAbsent", "WakerollProcessUnready")

    deployment.roles["wakeroll-run"] = {"coordinator": True, "standby": True}
    deployment.await_alerts("WakerollCertificateEnds", "WakerollRecorderAbsent")

    deployment.roles["wakeroll-run"] = {"coordinator": True, "recorder": True}
    deployment.await_alerts("WakerollCertificateEnds")

    deployment.end("wakeroll-observe")
    deployment.await_alerts("WakerollCertificateEnds", "WakerollObserverAbsent", "WakerollProcessUnready")
