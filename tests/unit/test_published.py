"""What the one adapter to Spark publishes: each decision, and instead of one that Kafka would not take, a refusal."""

import json
from typing import Any

import pandas as pd
import pytest

from wakeroll.connection import Topics
from wakeroll_model import config
from wakeroll_model.records import Record
from wakeroll_pipeline.operators.shard_operator import Counts, run_shard
from wakeroll_pipeline.recovery.initial_state import Restore

QUEUES = 100


class State:
    """As Spark's GroupState: what a shard keeps between two batches."""

    exists = False
    get: Any = None

    def update(self, kept: Any) -> None:
        self.exists, self.get = True, kept


class Failures:
    """As Spark's Accumulator."""

    value = 0

    def add(self, number: int) -> None:
        self.value += number


class Ignored:
    """An accumulator that nobody reads here."""

    def add(self, _: Any) -> None:
        pass


AT = ("wakeroll.groups", 0)


def frame_of(*events: dict[str, Any]) -> pd.DataFrame:
    rows = [
        (*AT, offset, 1_000, event["group_id"].encode() if "group_id" in event else None, json.dumps(event).encode())
        for offset, event in enumerate(events)
    ]
    return pd.DataFrame(rows, columns=Record.__struct_fields__)


EVENTS = (
    {
        "type": "route",
        "topic": "orders",
        "version": "1",
        "queues": [{"topic": "orders", "broker": "", "queue_id": number} for number in range(QUEUES)],
    },
    {
        "type": "heartbeat",
        "group_id": "billing",
        "client_id": "a",
        "instance_id": "a-1",
        "subscriptions": [{"topic": "orders"}],
    },
)


def published(failures: Failures) -> list[tuple[str, dict[str, Any]]]:
    counts = Counts(failures, *[Ignored() for _ in Counts._fields[1:]])
    around = {"topics": Topics(), "restore": Restore(), "keys": None, "counts": counts}
    frames = run_shard(1, **around, at=AT, frames=iter([frame_of(*EVENTS)]), state=State())
    return [(row.topic, json.loads(row.value)) for frame in frames for row in frame.itertuples()]


def test_a_decision_that_kafka_would_not_take_is_published_as_a_refusal(monkeypatch: pytest.MonkeyPatch):
    """The query would end, and again after each restart: one group's mistake must not stop all the others."""
    monkeypatch.setattr(config, "MAX_DECISION_BYTES", 5_000)
    failures = Failures()

    records = published(failures)
    [refused] = [value for topic, value in records if value["kind"] == "rejected" and topic == "wakeroll.decisions"]
    numbers = [value["seq"] for topic, value in records if topic == "wakeroll.decisions"]

    assert (refused["rule"], refused["group_id"], refused["client_id"]) == ("internal", "billing", "a")
    assert refused["detail"].startswith("the assignment has ")
    assert ("wakeroll.inbox", refused) in records
    assert numbers == list(range(1, QUEUES + 4))
    assert failures.value == 1


def test_any_other_decision_is_published_as_it_is():
    failures = Failures()

    records = published(failures)

    assert [value["kind"] for topic, value in records if topic == "wakeroll.inbox"] == ["assignment"]
    assert failures.value == 0
