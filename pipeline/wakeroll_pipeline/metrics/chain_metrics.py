"""The newest line of each table's chain, as two gauges: writers of the tables cannot change Prometheus' copy."""

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from wakeroll_model.chain import Head


class ChainMetrics(Collector):
    """Number and hash of each newest line. Both are read together, so that every scrape has them of the same line."""

    def __init__(self, registry: CollectorRegistry | None) -> None:
        """Register the metrics; without a registry they are not exposed."""
        self._heads: Callable[[], Iterable[Head]] = list
        if registry is not None:
            registry.register(self)

    def watch(self, heads: Callable[[], Iterable[Head]]) -> None:
        """Expose the lines that this function returns, from now on; the threads of requests call it."""
        self._heads = heads

    def describe(self) -> list[GaugeMetricFamily]:
        """Return the metrics without their values."""
        return [
            GaugeMetricFamily(
                "wakeroll_chain_newest_line", "Number of the newest line of the chain of a table.", labels=["table"]
            ),
            # A label with the hash would make a new series with each line.
            GaugeMetricFamily(
                "wakeroll_chain_newest_line_hash",
                "Hash of that line: its first 13 hexadecimal digits, as a number.",
                labels=["table"],
            ),
        ]

    def collect(self) -> list[GaugeMetricFamily]:
        """Return the metrics with their values."""
        numbers, hashes = self.describe()
        for head in sorted(self._heads(), key=lambda one: one.table):
            numbers.add_metric([head.table], head.number)
            hashes.add_metric([head.table], head.first_bits)
        return [numbers, hashes]
