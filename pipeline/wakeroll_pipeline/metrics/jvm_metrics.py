"""Metrics of Spark's JVM: its memory and its garbage collectors."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge


class JvmMetrics:
    """The figures of a JVM, read by py4j. For one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics; they have no series before the first `sample`."""
        self._used = Gauge("wakeroll_jvm_memory_used_bytes", "Used memory of Spark's JVM.", ["area"], registry=registry)
        self._most = Gauge(
            "wakeroll_jvm_memory_max_bytes",
            "Largest memory of Spark's JVM; none for an area without a limit.",
            ["area"],
            registry=registry,
        )
        self._collections = Counter(
            "wakeroll_jvm_gc_collections", "Garbage collections of Spark's JVM.", ["gc"], registry=registry
        )
        self._seconds = Counter(
            "wakeroll_jvm_gc_seconds", "Duration of the garbage collections of Spark's JVM.", ["gc"], registry=registry
        )
        self._memory: Any = None
        self._collectors: list[tuple[str, Any]] = []
        self._seen: dict[tuple[str, str], float] = {}
        """Counter and collector -> figure of the last sample."""

    def watch(self, jvm: Any) -> None:
        """Read a JVM from now on; `jvm` is the view of its classes that py4j has."""
        management = jvm.java.lang.management.ManagementFactory
        self._memory = management.getMemoryMXBean()
        self._collectors = [(str(bean.getName()), bean) for bean in management.getGarbageCollectorMXBeans()]

    def sample(self) -> None:
        """Read the figures, in about ten milliseconds; without a JVM, do nothing."""
        if self._memory is None:
            return
        for area, usage in (
            ("heap", self._memory.getHeapMemoryUsage()),
            ("nonheap", self._memory.getNonHeapMemoryUsage()),
        ):
            self._used.labels(area).set(usage.getUsed())
            if (most := usage.getMax()) >= 0:
                self._most.labels(area).set(most)
        for name, bean in self._collectors:
            self._collections.labels(name).inc(self._growth("count", name, bean.getCollectionCount()))
            self._seconds.labels(name).inc(self._growth("time", name, bean.getCollectionTime() / 1_000))

    def _growth(self, figure: str, name: str, value: float) -> float:
        """Return by how much a figure has grown; it is -1 if the collector does not know it."""
        growth = max(value, 0) - self._seen.get((figure, name), 0)
        self._seen[figure, name] = max(value, 0)
        return max(growth, 0)
