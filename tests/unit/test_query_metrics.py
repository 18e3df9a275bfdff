"""Metrics of streaming queries, from reports as Spark makes them."""

import pytest
from prometheus_client import CollectorRegistry

from wakeroll_pipeline.metrics.query_metrics import Progress, QueryMetrics


def batch(
    number: int, *, records: int = 5, ms: int = 400, end: int = 10, at: str = "2026-07-01T03:00:00.000Z"
) -> Progress:
    return {
        "timestamp": at,
        "batchId": number,
        "numInputRows": records,
        "durationMs": {"triggerExecution": ms, "addBatch": ms - 100, "walCommit": 20},
        "sources": [{"endOffset": {"wakeroll.groups": {"0": end, "1": 0}, "wakeroll.decisions": {"0": end}}}],
    }


def idle(number: int) -> Progress:
    return {**batch(number, records=0), "durationMs": {"triggerExecution": 3, "latestOffset": 3}}


class Shown:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.metrics = QueryMetrics(self.registry)
        self.metrics.begin("record", 1_000.0)

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"wakeroll_query_{name}", {"query": "record", **labels})


def test_each_batch_counts_once_whatever_is_reported_again():
    """The reports that Spark keeps overlap from one reading to the next."""
    shown = Shown()
    shown.metrics.count("record", [batch(7), batch(8, ms=600)])
    shown.metrics.count("record", [batch(7), batch(8, ms=600), batch(9, records=1, ms=200)])

    assert shown.value("batch") == 9
    assert shown.value("records_total") == 11
    assert shown.value("batch_duration_seconds_count") == 3
    assert shown.value("batch_duration_seconds_sum") == pytest.approx(1.2)
    assert shown.value("phase_seconds_total", phase="addBatch") == pytest.approx(0.9)
    assert shown.value("phase_seconds_total", phase="walCommit") == pytest.approx(0.06)
    assert shown.value("phase_seconds_total", phase="triggerExecution") is None


def test_a_trigger_without_records_is_no_batch():
    """Spark reports it under the number that the next batch will have."""
    shown = Shown()
    shown.metrics.count("record", [idle(0)])
    assert shown.metrics.newest("record") == -1

    shown.metrics.count("record", [idle(0), batch(0)])
    assert shown.value("batch_duration_seconds_count") == 1
    assert shown.metrics.newest("record") == 0


def test_a_query_that_starts_with_nothing_to_do_is_where_the_process_before_has_ended():
    """A tap of a quiet topic would be unready until the next message, so its restart would call somebody."""
    shown = Shown()
    shown.metrics.count("record", [idle(8)])
    shown.metrics.measure_unread({("wakeroll.groups", 0): 12, ("wakeroll.groups", 1): 0, ("wakeroll.decisions", 0): 10})

    assert shown.metrics.newest("record") == shown.value("batch") == 7
    assert shown.metrics.unread("record") == 2
    assert shown.value("batch_duration_seconds_count") == 0
    shown.metrics.count("record", [idle(8), batch(8)])
    assert shown.value("batch_duration_seconds_count") == 1


def test_the_last_batch_ends_its_duration_after_its_begin():
    shown = Shown()
    assert shown.value("last_batch_timestamp_seconds") == 1_000

    shown.metrics.count("record", [batch(0, ms=2_500, at="1970-01-01T00:01:00.000Z")])
    assert shown.value("last_batch_timestamp_seconds") == 62.5


def test_unread_records_are_what_lies_behind_the_last_batch():
    shown = Shown()
    shown.metrics.count("record", [batch(0, end=10)])
    shown.metrics.measure_unread(
        {("wakeroll.groups", 0): 15, ("wakeroll.groups", 1): 2, ("wakeroll.decisions", 0): 10, ("other", 0): 99}
    )

    assert shown.value("unread_records", topic="wakeroll.groups") == 7
    assert shown.value("unread_records", topic="wakeroll.decisions") == 0


def test_a_topic_with_a_silent_leader_keeps_its_figure():
    """Half of a sum is no figure."""
    shown = Shown()
    shown.metrics.count("record", [batch(0, end=10)])
    shown.metrics.measure_unread({("wakeroll.groups", 0): 15, ("wakeroll.decisions", 0): 12})

    assert shown.value("unread_records", topic="wakeroll.groups") is None
    assert shown.value("unread_records", topic="wakeroll.decisions") == 2
