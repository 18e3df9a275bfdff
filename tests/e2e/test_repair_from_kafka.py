"""A repair reads missing events and decisions again from a real broker, by offset, byte for byte."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec import structs

from tests.support.delta_tables import append, write
from tests.support.systems.deployment import Log, deploy
from wakeroll_model.records import Record
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, RECORDED, SNAPSHOTS, Table
from wakeroll_model.shard import Shard
from wakeroll_model.signing import OnRecord
from wakeroll_pipeline.jobs.repair import repair
from wakeroll_pipeline.kafka.log_spans import Span, read_spans
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.arrow_schemas import arrow_table
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.operators.shard_operator import addressed
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.e2e

Rows = list[dict[str, Any]]


def records_of(settings: Settings, *topics: str) -> list[KafkaRecord]:
    """Return all records of these topics; those of a partition are in order."""
    places = [(topic, number) for topic in topics for number in range(settings.partitions)]
    logs = Cluster(settings.connection).all_offsets(places)
    messages = read_spans(settings.connection, {place: Span(*offsets) for place, offsets in logs.items()})
    return [
        KafkaRecord(one.topic(), one.partition(), one.offset(), one.timestamp()[1], one.key(), one.value())
        for one in messages
    ]


@pytest.fixture
def settings(broker, tmp_path: Path) -> Settings:
    """A deployment whose records were decided, published and recorded."""
    settings = deploy(broker, tmp_path, "repair")
    log, topics = Log(settings), settings.connection.topics
    log.tick()
    log.route(4)
    for client in ("a", "b", "c"):
        log.beat("billing", client)
        log.pass_seconds(9)
    shards: dict[tuple[str, int], Shard] = {}
    producer = settings.connection.producer()
    for one in records_of(settings, *topics.control):
        place = one.topic, one.partition
        if place not in shards:
            shards[place] = Shard(*place, settings.partitions, signatures=OnRecord())
        for decision in shards[place].apply(Record(*one[:6])):
            topic, key, value = next(addressed(decision, encode_decision(decision), topics, shards[place].name))
            producer.produce(topic, value, key)
    assert producer.flush(60) == 0
    decisions = read_decisions(records_of(settings, topics.decisions))
    rows = rows_of(records_of(settings, *topics.control), decisions)
    for table in RECORDED:
        write(settings.warehouse, table, arrow_table(table.row, [one.row for one in rows[table.name]]))
    append(settings.warehouse, SNAPSHOTS, [])
    return settings


def rows(settings: Settings, table: Table) -> Rows:
    location, _ = (settings.warehouse / table.name).for_deltalake()
    found: Rows = DeltaTable(location).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: [row[name] for name in table.key])


def keep(settings: Settings, table: Table, left: Rows) -> None:
    location, _ = (settings.warehouse / table.name).for_deltalake()
    schema = DeltaTable(location).to_pyarrow_table().schema
    write_deltalake(location, pa.Table.from_pylist(left, schema=schema), mode="overwrite")


def test_events_and_decisions_are_read_again_byte_for_byte(settings):
    """In the middle, at the head and at the tail; with the true times of publication, which a replay does not have."""
    before = {table.name: rows(settings, table) for table in RECORDED}
    ends = {row["partition"]: row["offset"] for row in before["events"] if row["topic"].endswith(".groups")}
    keep(settings, EVENTS, [row for row in before["events"] if row["offset"] not in (0, 1, 4, ends[row["partition"]])])
    edited = [row | {"json": row["json"].replace("billing", "billinx")} for row in before["decisions"][3:4]]
    keep(settings, DECISIONS, [*before["decisions"][1:3], *edited, *before["decisions"][6:]])
    keep(settings, ASSIGNMENTS, [])

    plan = repair(settings, lambda _: True)

    assert {(one.table, one.problem, one.source) for one in plan.findings} >= {
        ("events", "missing", "Kafka's log"),
        ("decisions", "missing", "Kafka's log"),
        ("decisions", "wrong", "Kafka's log"),
        ("assignments", "missing", "decisions"),
    }
    for table in (DECISIONS, ASSIGNMENTS, OFFSETS):
        assert rows(settings, table) == before[table.name], table.name
    assert [row for row in before["events"] if row not in rows(settings, EVENTS)] == [
        # Nothing that is left shows that the last record of a queues' shard was read; `record` reads it again.
        row
        for row in before["events"]
        if row["offset"] == ends[row["partition"]] and row not in rows(settings, EVENTS)
    ]
    assert before["decisions"] != []
    assert repair(settings, lambda _: True).changes == []


def test_an_emptied_table_is_read_again_up_to_what_was_decided(settings):
    before = rows(settings, EVENTS)
    keep(settings, EVENTS, [])

    repair(settings, lambda _: True)

    last = {}
    for row in rows(settings, DECISIONS):
        place = row["cause"]["topic"], row["cause"]["partition"]
        last[place] = max(row["cause"]["offset"], last.get(place, -1))
    expected = [row for row in before if row["offset"] <= last.get((row["topic"], row["partition"]), -1)]
    assert rows(settings, EVENTS) == expected != []


def test_records_of_another_log_are_not_taken(settings):
    """A topic that was created again has other records at the same offsets."""
    before = rows(settings, EVENTS)
    other = [row | {"value": b"{}"} if row["offset"] in (3, 5) else row for row in before if row["offset"] != 4]
    keep(settings, EVENTS, other)

    plan = repair(settings, lambda _: True)

    assert rows(settings, EVENTS) == other
    found = [one for one in plan.findings if one.table == "events"]
    assert {(one.first, one.source) for one in found} == {(4, "")}
    assert all("the topic was created again" in one.detail for one in found)


def test_without_a_broker_only_the_tables_are_read(settings):
    damaged = rows(settings, EVENTS)[:-1]
    keep(settings, EVENTS, damaged)

    repair(structs.replace(settings, bootstrap=""), lambda _: True)

    assert rows(settings, EVENTS) == damaged
