"""The metrics of several deployments in one answer: those of a deployment have its name in the label `deployment`."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class DeploymentMetrics(Collector):
    """Collects the metrics of all registries when they are scraped."""

    def __init__(
        self, registry: CollectorRegistry, process: CollectorRegistry, deployments: Mapping[str, CollectorRegistry]
    ) -> None:
        """Register the metrics.

        Args:
            registry: receives the metrics.
            process: the metrics of the whole process, which get no label.
            deployments: name of a deployment -> its metrics.
        """
        self._process = process
        self._deployments = deployments
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return no metrics: the names are known only when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, each once with the series of all deployments."""
        found = {family.name: family for family in self._process.collect()}
        for deployment, registry in self._deployments.items():
            for family in registry.collect():
                empty = Metric(family.name, family.documentation, family.type, family.unit)
                labelled = [one._replace(labels={"deployment": deployment, **one.labels}) for one in family.samples]
                found.setdefault(family.name, empty).samples += labelled
        yield from found.values()
