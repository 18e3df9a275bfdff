"""Memory, garbage collection and client errors of Spark's JVM, as metrics of the process that started it."""

import pytest
from prometheus_client import CollectorRegistry

from tests.support.closed_port import closed_port
from tests.support.waiting import wait_until
from wakeroll_pipeline.metrics.jvm_metrics import JvmMetrics

pytestmark = pytest.mark.spark


def test_the_metrics_follow_memory_and_garbage_collection_of_a_real_jvm(spark):
    """A process that has no JVM yet has no series, rather than zeros that look like an idle one."""
    registry = CollectorRegistry()
    metrics = JvmMetrics(registry)

    def figures(name: str) -> dict[str, float]:
        """Return the value of each series, by its only label."""
        samples = [sample for family in registry.collect() for sample in family.samples if sample.name == name]
        return {label: sample.value for sample in samples for label in sample.labels.values()}

    metrics.sample()
    assert figures("wakeroll_jvm_memory_used_bytes") == figures("wakeroll_jvm_gc_collections_total") == {}

    metrics.watch(spark._jvm)
    metrics.sample()
    used, most = figures("wakeroll_jvm_memory_used_bytes"), figures("wakeroll_jvm_memory_max_bytes")
    before, seconds = figures("wakeroll_jvm_gc_collections_total"), figures("wakeroll_jvm_gc_seconds_total")
    assert set(used) == {"heap", "nonheap"}
    assert 0 < used["heap"] <= most["heap"] == spark._jvm.java.lang.Runtime.getRuntime().maxMemory()
    assert set(before) == set(seconds)

    spark._jvm.java.lang.System.gc()
    metrics.sample()
    after, later = figures("wakeroll_jvm_gc_collections_total"), figures("wakeroll_jvm_gc_seconds_total")
    assert sum(after.values()) > sum(before.values())
    assert sum(seconds.values()) < sum(later.values()) < 600
    metrics.sample()
    assert figures("wakeroll_jvm_gc_collections_total").keys() == after.keys()


def test_the_errors_of_kafkas_clients_in_the_jvm_are_counted(spark):
    """The log has one line per minute of them, so it does not show how often a client tries."""
    registry = CollectorRegistry()
    metrics = JvmMetrics(registry)
    metrics.watch(spark._jvm)

    def errors() -> float:
        metrics.sample()
        return registry.get_sample_value("wakeroll_jvm_kafka_client_errors_total") or 0.0

    before = errors()
    with closed_port() as port:
        properties = spark._jvm.java.util.Properties()
        properties.put("bootstrap.servers", f"127.0.0.1:{port}")
        client = spark._jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            wait_until(lambda: errors() >= before + 3, "three attempts to connect are counted")
        finally:
            client.close(spark._jvm.java.time.Duration.ZERO)
