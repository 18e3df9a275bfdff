"""Memory and garbage collection of Spark's JVM, as metrics of the process that started it."""

import pytest
from prometheus_client import CollectorRegistry

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
