"""The registry of a process, and metrics of its own state: roles, room on its disks, expiry of certificates, errors."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from wakeroll import client_errors
from wakeroll.installed_version import installed_version
from wakeroll_model import feature_levels
from wakeroll_pipeline.metrics.certificate_ends import certificate_ends
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage import small_files


def new_registry() -> CollectorRegistry:
    """Create a registry with the memory, CPU time and open files of this process, and the versions of its software."""
    # The time of creation of each series doubles their number, and Prometheus does not use it.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    build = {"version": installed_version(), "newest_level": str(feature_levels.NEWEST)}
    Info("wakeroll_build", "Release of wakeroll, and the newest feature level that it knows.", registry=registry).info(
        build
    )
    return registry


class ProcessMetrics(Collector):
    """Collects the metrics when they are scraped, so that a replaced file is noticed."""

    def __init__(
        self,
        registry: CollectorRegistry,
        roles: Callable[[], Mapping[str, bool]],
        folders: Mapping[str, Path] | None = None,
        config: Mapping[str, str] | None = None,
        *,
        has_errors: bool = True,
    ) -> None:
        """Register the metrics.

        Args:
            registry: receives the metrics.
            roles: returns the roles of the process at the moment, like ``coordinator`` -> whether it is ready in it;
                the threads of requests call it.
            folders: name -> local folder whose disk must have room; one that does not exist yet has no series.
            config: settings of Kafka's client, which may name certificates.
            has_errors: whether to count errors, which are those of the whole process.
        """
        self._has_errors = has_errors
        self._roles = roles
        self._folders = folders or {}
        self._config = config or {}
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return the metrics without their values."""
        return [*self._gauges(), *self._counters()] if self._has_errors else [*self._gauges()]

    def collect(self) -> list[Metric]:
        """Return the metrics with their values."""
        ready, free, size, ends = gauges = self._gauges()
        for role, is_ready in self._roles().items():
            ready.add_metric([role], is_ready)
        for name, folder in self._folders.items():
            if folder.exists():
                usage = shutil.disk_usage(folder)
                free.add_metric([name], usage.free)
                size.add_metric([name], usage.total)
        for setting, end_s in certificate_ends(self._config).items():
            ends.add_metric([setting], end_s)
        if not self._has_errors:
            return [*gauges]
        kafka, store = counters = self._counters()
        for cause, count in client_errors.errors.copy().items():  # other threads add to it
            kafka.add_metric([cause], count)
        for kind in ("denied", "failed"):
            store.add_metric([kind], small_files.errors[kind])
        return [*gauges, *counters]

    def _counters(self) -> tuple[CounterMetricFamily, CounterMetricFamily]:
        return (
            CounterMetricFamily(
                "wakeroll_kafka_client_errors",
                "Errors that Kafka's clients in Python have reported, by Kafka's name of the error.",
                labels=["cause"],
            ),
            CounterMetricFamily(
                "wakeroll_store_errors",
                "Requests of wakeroll itself to an object store that failed, or were denied.",
                labels=["kind"],
            ),
        )

    def _gauges(self) -> list[GaugeMetricFamily]:
        return [
            GaugeMetricFamily("wakeroll_ready", "1 if the process is ready in a role, else 0.", labels=["role"]),
            GaugeMetricFamily(
                "wakeroll_disk_free_bytes", "Free space of the file system of a folder.", labels=["folder"]
            ),
            GaugeMetricFamily("wakeroll_disk_size_bytes", "Size of the file system of a folder.", labels=["folder"]),
            GaugeMetricFamily(
                "wakeroll_certificate_end_timestamp_seconds",
                "End of the certificates that a setting of Kafka's client names (Unix time).",
                labels=["setting"],
            ),
        ]


def expose_process(
    registry: CollectorRegistry,
    settings: Settings,
    roles: Callable[[], Mapping[str, bool]],
    *,
    has_errors: bool = True,
) -> None:
    """Add the metrics of a process of a deployment to a registry; see `ProcessMetrics`.

    Raises:
        InvalidUsage: a URI of the settings cannot be used, or the settings of Kafka's client contradict each other.
        InvalidConfigFile, InvalidKeys: a file that the settings name cannot be read.
    """
    places = {"home": settings.warehouse.parent, "checkpoints": settings.checkpoints_folder}
    folders = {name: place.path for name, place in places.items() if place.is_local}
    config = settings.connection.config if settings.bootstrap else {}
    ProcessMetrics(registry, roles, folders | {"work": settings.work_folder}, config, has_errors=has_errors)
