"""The readiness of a process with queries: what it has read, and that it goes on."""

import time

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


class Judged:
    """A sampler of one query, which reports what a test says."""

    def __init__(self) -> None:
        self.metrics = RunMetrics()
        self._sampler = MetricsSampler(self.metrics, [], Connection("127.0.0.1:9"))
        self._sampler._queries = {"coordinate": None}  # type: ignore[dict-item]
        self.metrics.queries.begin("coordinate", time.time())

    def batch(self, number: int, reached: int, ended_s: float) -> None:
        timestamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended_s))
        report = {
            "timestamp": timestamp,
            "batchId": number,
            "numInputRows": 1,
            "durationMs": {"triggerExecution": 1, "addBatch": 1},
            "sources": [{"endOffset": {"wakeroll.groups": {"0": reached}}}],
        }
        self.metrics.queries.count("coordinate", [report])

    def readiness(self, end: int) -> str:
        """Return the answer of the probe when the topic ends there."""
        self.metrics.queries.measure_unread({("wakeroll.groups", 0): end})
        self._sampler._judge()
        return self.metrics.health.readiness().reason


def test_a_coordinator_is_ready_when_it_has_caught_up():
    """A rollout goes on with the next pod as soon as this one is ready; it must not stop the only current one."""
    judged = Judged()
    before = judged.readiness(0)
    judged.batch(0, 100_000, time.time())
    behind = judged.readiness(1_000_000)
    judged.batch(1, 995_000, time.time())

    assert before == "not ready: the first batch is not complete"
    assert behind == "not ready: coordinate catches up: 900000 records wait"
    assert judged.readiness(1_000_000) == "ready"
    assert judged.readiness(2_000_000) == "ready", "a busy hour is no reason to replace it"


def test_a_coordinator_that_stands_still_is_not_ready():
    judged = Judged()
    judged.batch(0, 100, time.time() - 1_000)

    idle = judged.readiness(100)
    stuck = judged.readiness(101)

    assert idle == "ready", "without records there are no batches"
    assert stuck.startswith("not ready: coordinate has completed no batch for 1")
    assert stuck.endswith(" s, and 1 records wait")
    judged.batch(1, 101, time.time())
    assert judged.readiness(101) == "ready"


def test_a_recorder_that_has_no_batch_leaves_the_coordinator_of_its_process_ready():
    """The alert for an absent coordinator must not fire because the tables are late."""
    judged = Judged()
    judged._sampler._queries = {"coordinate": None, "record": None}  # type: ignore[dict-item]
    judged.metrics.queries.begin("record", time.time())
    judged.batch(0, 100, time.time())
    judged.readiness(100)
    health = judged.metrics.health

    assert (health.is_ready("coordinate"), health.is_ready("record"), health.is_ready()) == (True, False, False)
