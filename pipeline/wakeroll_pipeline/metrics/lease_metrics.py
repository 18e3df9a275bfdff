"""The leases that a process has or waits for, as a gauge that is read when it is scraped."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector


class LeaseMetrics(Collector):
    """Whether this process holds each of its leases. The holder is the process whose gauge is 1."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the gauge; it has no series before `watch`."""
        self._held: Callable[[], Mapping[str, bool]] = dict
        registry.register(self)

    def watch(self, held: Callable[[], Mapping[str, bool]]) -> None:
        """Expose the leases that this function returns, from now on; it is called by the threads of requests."""
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
