"""The registry of a process: its own metrics are added to those of the process itself."""

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from wakeroll.installed_version import installed_version
from wakeroll_model import feature_levels


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
