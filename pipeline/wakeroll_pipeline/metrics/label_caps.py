"""Caps on the values of labels, because names of groups come from records that anybody may append."""

from prometheus_client import CollectorRegistry, Counter, Gauge

OTHER = "(other)"
"""Value of a label for all names above its cap. No group, client or topic can have this name."""


class LabelCaps:
    """The names that are values of labels so far; further names share the value `OTHER`. For one thread."""

    def __init__(self, registry: CollectorRegistry, most: int) -> None:
        """Register the metrics of the caps.

        Args:
            registry: receives the metrics.
            most: how many names each label may have, at least 1.
        """
        self._most = most
        self._names: dict[str, set[str]] = {}
        self._in_use = Gauge(
            "wakeroll_metrics_label_values",
            "Names that are values of a label now.",
            ["label"],
            registry=registry,
        )
        self._capped = Counter(
            "wakeroll_metrics_capped_updates",
            f'Updates of metrics that are counted under "{OTHER}", because the label has reached its cap of names.',
            ["label"],
            registry=registry,
        )

    def value(self, label: str, name: str) -> str:
        """Return the value of a label for a name: the name itself, or `OTHER` if the label has reached its cap."""
        names = self._names.setdefault(label, set())
        if name in names:
            return name
        if len(names) >= self._most:
            self._capped.labels(label).inc()
            return OTHER
        names.add(name)
        self._capped.labels(label)  # so that the series begins with 0, and its first increase is seen
        self._in_use.labels(label).set(len(names))
        return name

    def release(self, label: str, name: str) -> None:
        """Make room for another name; the caller has removed the series with this one."""
        names = self._names.get(label, set())
        names.discard(name)
        self._in_use.labels(label).set(len(names))
