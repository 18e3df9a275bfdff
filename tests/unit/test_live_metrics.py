"""Gauges of the groups: which of too many groups have series of their own."""

from collections.abc import Sequence

from msgspec import structs
from prometheus_client import CollectorRegistry

from wakeroll_model.queue import Queue
from wakeroll_pipeline.live.view_structs import GroupSummary, GroupsView, Health
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.serve.live_metrics import LiveMetrics

CALM = GroupSummary(
    group_id="",
    verdict="healthy",
    reason="",
    findings=[],
    mode="clustering",
    strategy="AVG",
    epoch=1,
    topics=["orders"],
    members=1,
    queues=0,
    unowned=0,
    moving=0,
    lag_messages=None,
    lag_queues=0,
    behind_since_ms=None,
)


def group(name: str, **fields: object) -> GroupSummary:
    return structs.replace(CALM, group_id=name, **fields)


class Source:
    """A deployment with these groups, each with three queues that lag."""

    def __init__(self, groups: Sequence[GroupSummary]) -> None:
        self.now = list(groups)
        self.model = self

    def groups_view(self) -> GroupsView:
        health = Health(source="live", state="live", as_of_ms=10_000)
        return GroupsView(health=health, groups=sorted(self.now, key=lambda one: one.group_id))

    def offsets_of(self, _group_id: str) -> list[tuple[Queue, int, int]]:
        return [(Queue("orders", "", number), 100, 5) for number in range(3)]

    def held_pulls(self) -> int:
        return 0


class Scraped:
    def __init__(self, source: Source, *, groups: int, queues: int = 100) -> None:
        self.registry = CollectorRegistry()
        LiveMetrics(source, self.registry, GroupChoice(self.registry, groups), queues)  # type: ignore[arg-type]

    def with_series(self, metric: str = "kafka_consumergroup_members", label: str = "consumergroup") -> set[str]:
        return {
            sample.labels[label]
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == metric
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


INVENTED = [group(f"a{number:04}") for number in range(1_000)]
REAL = [
    group("billing", verdict="stalled", queues=8, lag_messages=7),
    group("shipping", queues=8, lag_messages=3),
    group("mail", queues=8, lag_messages=0),
]


def test_invented_names_that_sort_first_hide_no_real_group():
    scraped = Scraped(Source([*INVENTED, *REAL]), groups=3)

    assert scraped.with_series() == {"billing", "shipping", "mail"}
    assert scraped.value("wakeroll_serve_groups_without_series") == 1_000
    assert scraped.value("wakeroll_groups_by_verdict", verdict="stalled") == 1
    assert scraped.value("wakeroll_groups_by_verdict", verdict="healthy") == 1_002


def test_a_group_that_falls_ill_gets_series_at_the_next_scrape():
    source = Source([group("a", queues=1), group("b", queues=1)])
    scraped = Scraped(source, groups=1)
    before = scraped.with_series()
    source.now[1] = structs.replace(source.now[1], verdict="abandoned")

    assert (before, scraped.with_series()) == ({"a"}, {"b"})


def test_among_equals_a_group_keeps_its_series():
    """Series that come and go make graphs and alerts worthless."""
    source = Source([group("b", queues=1)])
    scraped = Scraped(source, groups=1)
    scraped.with_series()
    source.now.append(group("a", queues=1))

    assert scraped.with_series() == {"b"}


def test_the_queues_of_the_most_important_groups_have_series():
    scraped = Scraped(Source([*INVENTED, *REAL]), groups=3, queues=6)

    assert scraped.with_series("kafka_consumergroup_lag") == {"billing", "shipping"}
    assert scraped.value("wakeroll_serve_queues_without_series") == 3
