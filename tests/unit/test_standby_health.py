"""The readiness of a process that stands by."""

from tests.support.waiting import wait_until
from wakeroll.connection import Connection
from wakeroll_pipeline.jobs.metrics_sampler import MetricsSampler
from wakeroll_pipeline.metrics.run_metrics import RunMetrics


def test_a_standby_is_ready_although_it_has_no_query():
    """Kubernetes updates the next pod, and drains a node, only when all others of a StatefulSet are ready."""
    metrics = RunMetrics()
    assert not metrics.health.readiness().ok

    with MetricsSampler(metrics, [], Connection("127.0.0.1:9")):
        wait_until(lambda: metrics.health.readiness().ok, "it is ready", state=metrics.health.readiness)
