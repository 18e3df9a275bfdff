"""The state of a process itself: its roles and whether it is ready, room on its disks, ends of certificates."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from wakeroll_pipeline.metrics.certificate_ends import certificate_ends
from wakeroll_pipeline.settings import Settings


class ProcessMetrics(Collector):
    """Collects the gauges when they are scraped, so that a file that is replaced is seen."""

    def __init__(
        self,
        registry: CollectorRegistry,
        roles: Callable[[], Mapping[str, bool]],
        folders: Mapping[str, Path] | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Register the gauges.

        Args:
            registry: receives the gauges.
            roles: returns the roles of the process at the moment, like ``coordinator`` -> whether it is ready in it;
                it is called by the threads of requests.
            folders: name -> local folder whose disk must have room; one that does not exist yet has no series.
            config: settings of Kafka's client, which may name certificates.
        """
        self._roles = roles
        self._folders = folders or {}
        self._config = config or {}
        registry.register(self)

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the gauges without their values."""
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

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the gauges with their values."""
        ready, free, size, ends = found = self.describe()
        for role, is_ready in self._roles().items():
            ready.add_metric([role], is_ready)
        for name, folder in self._folders.items():
            if folder.exists():
                usage = shutil.disk_usage(folder)
                free.add_metric([name], usage.free)
                size.add_metric([name], usage.total)
        for setting, end_s in certificate_ends(self._config).items():
            ends.add_metric([setting], end_s)
        return found


def expose_process(
    registry: CollectorRegistry,
    settings: Settings,
    roles: Callable[[], Mapping[str, bool]],
) -> None:
    """Add the metrics of a process of a deployment to a registry; see `ProcessMetrics`.

    Raises:
        InvalidUsage: a URI of the settings cannot be used, or the settings of Kafka's client contradict each other.
        InvalidConfigFile, InvalidKeys: a file that the settings name cannot be read.
    """
    places = {"home": settings.warehouse.parent, "checkpoints": settings.checkpoints_folder}
    folders = {name: place.path for name, place in places.items() if place.is_local}
    config = settings.connection.config if settings.bootstrap else {}
    ProcessMetrics(registry, roles, folders | {"work": settings.work_folder}, config)
