"""Metrics of streaming queries, from the progress that Spark reports of each batch."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_WHOLE = "triggerExecution"
"""Spark's name of the duration of a whole batch, beside those of its phases."""
_WORK = "addBatch"
"""The phase that only a batch with records has; Spark also reports triggers without a batch."""
_BATCHES_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60, 300)

Progress = Mapping[str, Any]
"""One progress of a query, as Spark's JSON has it."""
Places = dict[tuple[str, int], int]
"""(topic, partition) -> offset."""


class QueryMetrics:
    """The batches of the queries of one process. For one thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register the metrics; the queries have no series before `begin`."""
        self._batch = Gauge(
            "wakeroll_query_batch", "Number of the last completed batch, from 0.", ["query"], registry=registry
        )
        self._records = Counter(
            "wakeroll_query_records",
            "Records that the query has read, in completed batches.",
            ["query"],
            registry=registry,
        )
        self._durations = Histogram(
            "wakeroll_query_batch_duration_seconds",
            "Duration of the completed batches.",
            ["query"],
            buckets=_BATCHES_S,
            registry=registry,
        )
        self._phases = Counter(
            "wakeroll_query_phase_seconds",
            "Duration of the phases of the completed batches, by Spark's names.",
            ["query", "phase"],
            registry=registry,
        )
        self._ended = Gauge(
            "wakeroll_query_last_batch_timestamp_seconds",
            "End of the last batch (Unix time), or start of the query before its first one.",
            ["query"],
            registry=registry,
        )
        self._unread = Gauge(
            "wakeroll_query_unread_records",
            "Records of a topic between the last completed batch and the end of the topic.",
            ["query", "topic"],
            registry=registry,
        )
        self._newest: dict[str, int] = {}
        """Query -> number of its last counted batch."""
        self._reached: dict[str, Places] = {}
        self._ends_s: dict[str, float] = {}
        self._measured: dict[str, dict[str, int]] = {}
        """Query -> topic -> unread records."""

    def begin(self, query: str, at_s: float) -> None:
        """Record the start of a query; `at_s` is the Unix time."""
        self._records.labels(query)
        self._durations.labels(query)
        self._end(query, at_s)

    def newest(self, query: str) -> int:
        """Return the number of the last counted batch of a query; -1 if there is none."""
        return self._newest.get(query, -1)

    def count(self, query: str, reports: Sequence[Progress]) -> None:
        """Count the batches that were not counted yet.

        Args:
            query: name of the query.
            reports: its progress in order of time, including batches that were counted already, and triggers without a
                batch.
        """
        for report in reports:
            durations_ms = report["durationMs"]
            number = int(report["batchId"])
            if _WORK not in durations_ms and query not in self._newest and number > 0:
                # An earlier process has completed the batch before, and there is nothing to do since.
                self._newest[query] = number - 1
                self._batch.labels(query).set(number - 1)
                self._reached[query] = reached_by(report)
            if number <= self.newest(query) or _WORK not in durations_ms:
                continue
            self._newest[query] = number
            whole_s = durations_ms.get(_WHOLE, 0) / 1_000
            self._batch.labels(query).set(number)
            self._records.labels(query).inc(report["numInputRows"])
            self._durations.labels(query).observe(whole_s)
            for phase, ms in durations_ms.items():
                if phase != _WHOLE:
                    self._phases.labels(query, phase).inc(max(ms, 0) / 1_000)
            self._end(query, datetime.fromisoformat(report["timestamp"]).timestamp() + whole_s)
            self._reached[query] = reached_by(report)

    def unread(self, query: str) -> int | None:
        """Return the number of unread records of all topics of a query, as last measured; None before that."""
        found = self._measured.get(query)
        return None if found is None else sum(found.values())

    def ended_s(self, query: str) -> float:
        """Return the end of the last batch of a query, or its start before the first one (Unix time)."""
        return self._ends_s[query]

    @property
    def reached(self) -> Mapping[str, Places]:
        """Query -> offset after the last record of its last batch, by topic and partition."""
        return self._reached

    def measure_unread(self, ends: Places) -> None:
        """Update the number of unread records.

        Args:
            ends: end offsets that the brokers returned; a topic with a partition that is missing here is not updated.
        """
        for query, places in self._reached.items():
            for topic in {topic for topic, _ in places}:
                its = {place: offset for place, offset in places.items() if place[0] == topic}
                if its.keys() <= ends.keys():
                    unread = sum(max(ends[place] - offset, 0) for place, offset in its.items())
                    self._unread.labels(query, topic).set(unread)
                    self._measured.setdefault(query, {})[topic] = unread

    def _end(self, query: str, at_s: float) -> None:
        self._ended.labels(query).set(at_s)
        self._ends_s[query] = at_s


def reached_by(report: Progress) -> Places:
    """Return the offsets at which the next batch continues, of all Kafka sources of a query.

    >>> reached_by({"sources": [{"endOffset": '{"orders": {"0": 7, "1": 9}}'}]})
    {('orders', 0): 7, ('orders', 1): 9}
    """
    found: Places = {}
    for source in report["sources"]:
        offsets = source["endOffset"] or {}
        for topic, partitions in (json.loads(offsets) if isinstance(offsets, str) else offsets).items():
            found |= {(topic, int(partition)): int(offset) for partition, offset in partitions.items()}
    return found
