"""Metrics of `wakeroll run` and `wakeroll tap`: their queries, the shards' reports, snapshots, upkeep and leases."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from wakeroll_model.decisions import RULES
from wakeroll_pipeline.metrics.chain_metrics import ChainMetrics
from wakeroll_pipeline.metrics.health import Health
from wakeroll_pipeline.metrics.jvm_metrics import JvmMetrics
from wakeroll_pipeline.metrics.process_metrics import new_registry
from wakeroll_pipeline.metrics.query_metrics import QueryMetrics


class RunMetrics:
    """The metrics of a process with streaming queries."""

    def __init__(
        self, *, decides: bool = False, writes: bool = False, registry: CollectorRegistry | None = None
    ) -> None:
        """Register the metrics of the jobs that this process runs.

        Args:
            decides: whether it runs the state machines.
            writes: whether it writes the tables, and so takes the snapshots and does the upkeep.
            registry: receives the metrics; None: a new one, with the metrics of this process.
        """
        self.registry = registry = registry or new_registry()
        self.health = Health("the first batch is not complete")
        self.queries = QueryMetrics(registry)
        self.shards = ShardMetrics(registry if decides else None)
        self.tables = TableMetrics(registry if writes else None)
        self.leases = LeaseMetrics(registry)
        self.jvm = JvmMetrics(registry)

    def begin_writing(self) -> None:
        """Expose the metrics of the tables from now on; a standby does not expose them before its turn."""
        if not self.tables.is_exposed:
            self.tables = TableMetrics(self.registry)

    def watch_jvm(self, pid: int | None, jvm: Any = None) -> None:
        """Add the memory, CPU time and open files of Spark's JVM, and its own figures.

        Args:
            pid: process id of the JVM, which is a separate process; None if it is not known.
            jvm: py4j's view of its classes; None: its own figures are not read.
        """
        if jvm is not None:
            self.jvm.watch(jvm)
        if pid is not None:
            ProcessCollector(namespace="wakeroll_jvm", pid=lambda: pid, registry=self.registry)


class ShardMetrics:
    """The reports of the shards to the driver. Shards repeat the report of a batch that Spark repeats."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """Register the metrics; without a registry they are not exposed."""
        self._bytes = Gauge(
            "wakeroll_run_state_bytes",
            "Size of the state of a shard after its last batch; only shards that had a batch since the start.",
            ["shard"],
            registry=registry,
        )
        self._used = Gauge(
            "wakeroll_run_state_used_ratio",
            "Largest share that a shard uses of a limit above which events are rejected, 0 to 1.",
            ["shard"],
            registry=registry,
        )
        self._era = Gauge(
            "wakeroll_run_shard_era", "Era of a shard: it grows when a state was lost.", ["shard"], registry=registry
        )
        self._level = Gauge("wakeroll_run_shard_level", "Feature level of a shard.", ["shard"], registry=registry)
        self._failures = Counter(
            "wakeroll_run_internal_failures",
            "Events that made the machine itself fail; they are rejected with the rule `internal`.",
            registry=registry,
        )
        self._rejections = Counter(
            "wakeroll_run_rejections", "Rejected records, by the rule that they break.", ["rule"], registry=registry
        )
        for rule in RULES:  # a series that begins with its first rejections has no growth then
            self._rejections.labels(rule)
        self._seen: dict[str, int] = {}
        """Rule, or "" for failures -> figure of the last update."""

    def update(self, state_bytes: Mapping[str, int], failures: int, rejections: Mapping[str, int]) -> None:
        """Process the figures that the shards have reported since the start."""
        for shard, size in state_bytes.items():
            self._bytes.labels(shard).set(size)
        self._failures.inc(self._growth("", failures))
        for rule, count in rejections.items():
            self._rejections.labels(rule).inc(self._growth(rule, count))

    def update_places(self, eras: Mapping[str, int], levels: Mapping[str, int], used: Mapping[str, float]) -> None:
        """Process era, feature level and used share of the limits (0 to 1) of each shard, after its last batch."""
        for gauge, figures in ((self._era, eras), (self._level, levels), (self._used, used)):
            for shard, figure in figures.items():
                gauge.labels(shard).set(figure)

    def _growth(self, name: str, figure: int) -> int:
        growth = figure - self._seen.get(name, 0)
        self._seen[name] = figure
        return growth


class TableMetrics:
    """Snapshots, the upkeep of the tables, and their chains."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """Register the metrics; without a registry they are not exposed."""
        self.is_exposed = registry is not None
        self._snapshot = Gauge(
            "wakeroll_run_last_snapshot_timestamp_seconds",
            "Time of the last snapshots of the shards (Unix time), or start of the process before the first ones.",
            registry=registry,
        )
        self._snapshots = Counter(
            "wakeroll_run_snapshots", "Snapshots of shards that were appended to the table.", registry=registry
        )
        self._steps = Counter(
            "wakeroll_upkeep_steps", "Steps of the upkeep of the tables.", ["step", "outcome"], registry=registry
        )
        self._seconds = Counter(
            "wakeroll_upkeep_seconds", "Duration of the steps of the upkeep.", ["step"], registry=registry
        )
        self._succeeded = Gauge(
            "wakeroll_upkeep_last_success_timestamp_seconds",
            "End of the last successful step of the upkeep (Unix time), or start of the process before the first one.",
            registry=registry,
        )
        self._divergences = Counter(
            "wakeroll_run_divergent_decisions",
            "Decisions that differ from the decision with the same identity of another coordinator.",
            registry=registry,
        )
        self.chains = ChainMetrics(registry)
        self._divergences_seen = 0
        self._snapshot.set_to_current_time()
        self._succeeded.set_to_current_time()

    def took_snapshots(self, shards: int) -> None:
        """Record that the states of all shards are in the table; `shards` of them had changed."""
        self._snapshots.inc(shards)
        self._snapshot.set_to_current_time()

    def diverged(self, since_start: int) -> None:
        """Record how many decisions since the start differ from those of another coordinator."""
        self._divergences.inc(since_start - self._divergences_seen)
        self._divergences_seen = since_start

    def did_upkeep(self, step: str, seconds: float, succeeded: bool) -> None:
        """Record one step of upkeep."""
        self._steps.labels(step, "success" if succeeded else "failure").inc()
        self._seconds.labels(step).inc(seconds)
        if succeeded:
            self._succeeded.set(time.time())


class LeaseMetrics(Collector):
    """Whether this process holds each of its leases. The holder is the process whose gauge is 1."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the gauge; it has no series before `watch`."""
        self._held: Callable[[], Mapping[str, bool]] = dict
        registry.register(self)

    def watch(self, held: Callable[[], Mapping[str, bool]]) -> None:
        """Expose the leases that this function returns, from now on; the threads of requests call it."""
        self._held = held

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the gauge without its values."""
        return [
            GaugeMetricFamily(
                "wakeroll_lease_held",
                "1 if this process holds the lease, 0 if it waits for it; none if locked files are enough.",
                labels=["lease"],
            )
        ]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the gauge with its values."""
        [held] = self.describe()
        for lease, is_held in sorted(self._held().items()):
            held.add_metric([lease], is_held)
        return [held]
