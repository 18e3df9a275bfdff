"""Gauges of the live model for Prometheus: lag, members and ticks, also under the names of Kafka's exporters.

With several deployments, they are all in one answer.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.live.verdicts import KINDS
from wakeroll_pipeline.live.view_structs import GroupSummary
from wakeroll_pipeline.metrics.group_choice import GroupChoice

_CALM = ("learning", "empty", "healthy")
_URGENCY = {kind: len(KINDS) if kind in _CALM else place for place, kind in enumerate(KINDS)}
"""Verdict -> its rank; verdicts that need no attention come last."""


class LiveMetrics(Collector):
    """Collects the gauges when they are scraped."""

    def __init__(self, source: ViewSource, registry: CollectorRegistry, choice: GroupChoice, most_queues: int) -> None:
        """Register the gauges.

        Args:
            source: the state of all groups.
            registry: receives the gauges.
            choice: the groups that have series of their own; they are ranked at each scrape.
            most_queues: maximum number of queues with series of their own: those of the most important groups.
        """
        self._source = source
        self._choice = choice
        self._most_queues = most_queues
        registry.register(self)

    def describe(self) -> list[Metric]:
        """Return no metrics: the names are known only when they are collected."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield all gauges."""
        view = self._source.model.groups_view()
        ranked = sorted(view.groups, key=self._importance)
        chosen = self._choice.rank(one.group_id for one in ranked)
        shown = [one for one in ranked if one.group_id in chosen]
        yield from _of_groups(shown, view.health.as_of_ms)
        yield from self._of_queues(shown)
        yield _of_verdicts(view.groups)
        ticks = GaugeMetricFamily(
            "wakeroll_tick_age_seconds", "Time since the last tick of a shard was received.", labels=["shard"]
        )
        for shard, age_ms in sorted(view.health.tick_age_ms.items()):
            ticks.add_metric([shard], age_ms / 1_000)
        yield ticks
        yield _single("wakeroll_groups", "Groups that the coordinator knows.", len(view.groups))
        yield _single("wakeroll_members", "Members of all groups.", sum(one.members for one in view.groups))
        yield _single("wakeroll_held_pulls", "Pulls that wait for messages.", self._source.model.held_pulls())
        yield _single(
            "wakeroll_serve_groups_without_series",
            f"Groups beyond the {self._choice.most} most important ones, which have no series of their own.",
            len(view.groups) - len(shown),
        )

    def _importance(self, group: GroupSummary) -> tuple[int, bool, bool, bool, bool, str]:
        """Return the sort key of groups, the most important one first.

        Groups with a problem come before others; those with members, queues and lag before those without. Among equals,
        a group that has series keeps them.
        """
        is_new = not self._choice.has(group.group_id)
        has_none = not group.members, not group.queues, not group.lag_messages
        return _URGENCY[group.verdict], *has_none, is_new, group.group_id

    def _of_queues(self, groups: list[GroupSummary]) -> Iterator[Metric]:
        names = ["consumergroup", "topic", "partition"]
        lag = GaugeMetricFamily("kafka_consumergroup_lag", "Messages behind the end of a partition.", labels=names)
        offset = GaugeMetricFamily(
            "kafka_consumergroup_current_offset", "Committed offset of a partition.", labels=names
        )
        # Under names of their own: sums over the names above count each partition once.
        of_slice = ["group", "topic", "partition", "slice"]
        slice_lag = GaugeMetricFamily(
            "wakeroll_slice_lag_messages", "Messages of all slices of a partition behind its end.", labels=of_slice
        )
        slice_offset = GaugeMetricFamily(
            "wakeroll_slice_committed_offset", "Committed offset of a slice of a partition.", labels=of_slice
        )
        left_out, count = 0, 0
        for group in groups:
            offsets = self._source.model.offsets_of(group.group_id)
            for partition, slices in groupby(offsets, lambda one: one[0].whole):
                its = list(slices)
                series = len(its) + (its[0][0] != partition)
                if count + series > self._most_queues:
                    left_out += len(its)
                    continue
                count += series
                topic = f"{partition.topic}@{partition.broker}" if partition.broker else partition.topic
                labels = [group.group_id, topic, str(partition.queue_id)]
                _add(offset, labels, min((one for _, one, _ in its if one is not None), default=None))
                _add(lag, labels, max((one for _, _, one in its if one is not None), default=None))
                for queue, committed, messages in its:
                    if queue.slice_text is not None:
                        _add(slice_offset, [*labels, queue.slice_text], committed)
                        _add(slice_lag, [*labels, queue.slice_text], messages)
        yield from (lag, offset, slice_lag, slice_offset)
        yield _single(
            "wakeroll_serve_queues_without_series",
            f"Queues beyond the first {self._most_queues} of the most important groups, without series of their own.",
            left_out,
        )


def _add(family: GaugeMetricFamily, labels: list[str], value: int | None) -> None:
    if value is not None:
        family.add_metric(labels, value)


def _of_groups(groups: list[GroupSummary], now_ms: int) -> Iterator[Metric]:
    """Yield the gauges with one series per group."""
    members = GaugeMetricFamily("kafka_consumergroup_members", "Members of a group.", labels=["consumergroup"])
    seconds = GaugeMetricFamily(
        "kafka_consumergroup_group_max_lag_seconds", "Time that the oldest message of a group waits.", labels=["group"]
    )
    messages = GaugeMetricFamily("wakeroll_group_lag_messages", "Messages that wait in a group.", labels=["group"])
    unknown = GaugeMetricFamily(
        "wakeroll_group_lag_unknown_queues", "Queues of a group whose lag is not known.", labels=["group"]
    )
    unowned = GaugeMetricFamily("wakeroll_queues_unowned", "Queues of a group without an owner.", labels=["group"])
    verdict = GaugeMetricFamily("wakeroll_group_verdict", "1 for the verdict of a group.", labels=["group", "verdict"])
    for one in groups:
        members.add_metric([one.group_id], one.members)
        unowned.add_metric([one.group_id], one.unowned)
        unknown.add_metric([one.group_id], one.lag_unknown)
        verdict.add_metric([one.group_id, one.verdict], 1)
        if one.lag_messages is not None:
            messages.add_metric([one.group_id], one.lag_messages)
            waits_ms = 0 if one.behind_since_ms is None else max(now_ms - one.behind_since_ms, 0)
            seconds.add_metric([one.group_id], waits_ms / 1_000)
    yield from (members, seconds, messages, unknown, unowned, verdict)


def _of_verdicts(groups: list[GroupSummary]) -> Metric:
    """Return the number of groups with each verdict, including groups without series of their own."""
    counts = Counter(one.verdict for one in groups)
    found = GaugeMetricFamily("wakeroll_groups_by_verdict", "Groups that have a verdict.", labels=["verdict"])
    for kind in KINDS:
        found.add_metric([kind], counts[kind])
    return found


def _single(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


class DeploymentMetrics(Collector):
    """Collects the metrics of all registries when they are scraped."""

    def __init__(
        self, registry: CollectorRegistry, process: CollectorRegistry, deployments: Mapping[str, CollectorRegistry]
    ) -> None:
        """Register the metrics.

        Args:
            registry: receives the metrics.
            process: the metrics of the whole process, which have no label.
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
