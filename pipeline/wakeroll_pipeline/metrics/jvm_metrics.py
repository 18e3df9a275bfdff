"""Metrics of Spark's JVM: its memory, its garbage collectors, and errors of its clients of Kafka and of an S3 store."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

_APPENDER = "kafka_client_errors"
"""Appender of log4j2.properties that counts the errors of Kafka's clients."""
_S3A = "S3AStorageStatistics"
"""Hadoop's name of the figures of its client of S3; a JVM has one client per bucket."""


class JvmMetrics:
    """The figures of a JVM, read by py4j. For one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics; those with labels have no series before the first `sample`."""
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
        self._kafka_errors = Counter(
            "wakeroll_jvm_kafka_client_errors",
            "Warnings and errors that Kafka's clients in Spark's JVM have reported.",
            registry=registry,
        )
        self._store_retries = Counter(
            "wakeroll_jvm_store_retries",
            "Requests of Spark's JVM to an S3 store that failed and were repeated.",
            registry=registry,
        )
        self._memory: Any = None
        self._collectors: list[tuple[str, Any]] = []
        self._kafka: Any = None
        self._stores: Any = None
        self._seen: dict[tuple[str, str], float] = {}
        """Counter, and collector or client -> figure of the last sample."""

    def watch(self, jvm: Any) -> None:
        """Read a JVM from now on; `jvm` is the view of its classes that py4j has."""
        management = jvm.java.lang.management.ManagementFactory
        self._memory = management.getMemoryMXBean()
        self._collectors = [(str(bean.getName()), bean) for bean in management.getGarbageCollectorMXBeans()]
        log4j = jvm.org.apache.logging.log4j.LogManager.getContext(False)
        self._kafka = log4j.getConfiguration().getAppender(_APPENDER)
        self._stores = jvm.org.apache.hadoop.fs.FileSystem.getGlobalStorageStatistics()

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
        if self._kafka is not None:  # spark-submit starts a JVM with a log4j of its own
            self._kafka_errors.inc(self._growth("errors", "kafka", self._kafka.getCount()))
        if (s3a := self._stores.get(_S3A)) is not None:  # there is none before the first request
            self._store_retries.inc(self._growth("retries", "s3a", s3a.getLong("store_io_retry")))

    def _growth(self, figure: str, name: str, value: float) -> float:
        """Return the increase of a figure, which is -1 if the collector does not have it."""
        growth = max(value, 0) - self._seen.get((figure, name), 0)
        self._seen[figure, name] = max(value, 0)
        return max(growth, 0)
