"""The newest lines of the tables' chains in Kafka: published by a recorder, compared by `check --bootstrap`."""

import json
import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from tests.support.chained_ledgers import append, create_tables
from tests.support.ledgers import Story
from wakeroll.connection import Connection, Topics
from wakeroll_model.chain import Head
from wakeroll_pipeline.kafka.control_topics import ensure_chain_topic
from wakeroll_pipeline.kafka.published_lines import LinePublisher, forget_published, read_published
from wakeroll_pipeline.kafka.topic_admin import Cluster
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

pytestmark = pytest.mark.e2e

Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def connection(broker) -> Connection:
    connection = Connection(broker.bootstrap, topics=Topics(f"published-{uuid.uuid4().hex[:6]}"))
    assert ensure_chain_topic(connection) is None
    assert ensure_chain_topic(connection) is None, "it exists"
    return connection


@pytest.fixture
def check(wakeroll, connection, tmp_path, monkeypatch) -> Check:
    """`check` of the tables in `tmp_path`; with the published lines, unless another broker or prefix is named."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str, asks: bool = True) -> tuple[int, str, str]:
        prefix = [] if "--prefix" in arguments else ["--prefix", connection.topics.prefix]
        named = ["--bootstrap", connection.bootstrap, *prefix] if asks else []
        return wakeroll("check", "--no-docs", "--home", str(tmp_path), *named, *arguments)

    return run


def a_history(committed: int, ends: bool = True) -> Story:
    """Tell of a group that commits an offset, and perhaps of what follows; everything else is the same."""
    story = Story()
    story.route("orders", 4, ends=1_000)
    story.join("billing", "a", "orders")
    story.pass_seconds(5)
    story.commit("billing", committed)
    story.pass_seconds(5)
    if ends:
        story.join("billing", "b", "orders")
        story.pass_seconds(10)
    return story


def record(warehouse: Path, story: Story, publisher: LinePublisher | None = None, after: int = 0) -> None:
    """Let a process write the records of a story after the first ones into tables, and end."""
    chains = Chains(warehouse, None if publisher is None else publisher.publish)
    chains.begin()
    later = Story()
    later.rows = story.rows[after:]
    append(warehouse, later, chains, batches=2)
    chains.gather(ArrowSink().append)
    if publisher is not None:
        publisher.close()


def forge(warehouse: Path, story: Story) -> None:
    """Rewrite all tables, as a recorder would have written this story; who does it may write to the tables only."""
    shutil.rmtree(warehouse)
    create_tables(warehouse)
    record(warehouse, story)


def test_the_topic_keeps_the_last_record_of_each_process_for_ever(connection):
    topic = connection.topics.chain
    settings = Cluster(connection).settings([topic])[topic]

    assert (settings["cleanup.policy"], settings["retention.ms"]) == ("compact", "-1")
    assert settings["message.timestamp.type"] == "LogAppendTime", "a process cannot choose the time of its record"
    assert len(Cluster(connection).racks([topic])[topic]) == 1


def test_only_the_published_lines_show_that_the_history_was_rewritten(connection, check, tmp_path):
    """Also after another recorder has continued the forged history, and has published its lines."""
    warehouse, part = tmp_path / "warehouse", len(a_history(300, ends=False).rows)
    create_tables(warehouse)
    begun, whole, forged = a_history(300, ends=False), a_history(300), a_history(301)
    record(warehouse, begun, LinePublisher(connection, "one"))
    record(warehouse, whole, LinePublisher(connection, "two"), after=part)

    code, said, _ = check()
    assert code == 0, said
    published = read_published(connection) or []
    assert {one.by.partition("-")[0] for one in published} == {"one", "two"}
    assert f"the newest line published in {connection.topics.chain}, of 20" in said
    lines = {(one.table, one.number) for one in published}
    assert len(lines) < len(published), "both recorders published the same line of offsets"
    assert f"is in the chain, as all {len(lines)} are" in said

    forge(warehouse, a_history(301, ends=False))
    record(warehouse, forged, LinePublisher(connection, "three"), after=part)
    assert check(asks=False)[0] == 0, "its rows, hashes and lines fit together"
    code, said, _ = check()
    assert code == 1
    assert "1 broken" in said
    true = next(one for one in published if one.table == "events")
    assert f"{len(lines)} lines that were published are not in the chains" in said
    code, said, _ = check("--json")
    document = json.loads(said)
    [rule] = [one for one in document["rules"] if one["status"] == "broken"]
    assert (rule["name"], rule["table"], document["exit_code"]) == ("chain.published", "chain", 1)
    row = rule["rows"][0]
    assert row["at"].startswith(f"line {true.number} of events, published in {connection.topics.chain} at 20")
    assert row["expected"] == true.line_hash
    assert len(row["found"]) == 64
    assert all(row[name] in document["published"] for name in ("at", "found", "expected"))


@pytest.mark.operate
def test_restored_tables_are_not_accused(connection, check, tmp_path):
    """`restore` says in the topic that the lost lines do not count; the next recorder begins new chains."""
    warehouse = tmp_path / "warehouse"
    create_tables(warehouse)
    record(warehouse, a_history(300), LinePublisher(connection, "one"))
    tables = sorted({one.table for one in read_published(connection) or ()})
    forge(warehouse, a_history(300))
    assert check()[0] == 1, "other times of the appends, and so other lines"

    assert forget_published(connection, [*tables, "snapshots"], "the tables were lost", "restore") == tables
    code, said, _ = check()
    assert code == 0
    assert "1 skipped: no line was published in" in said
    assert ", when the tables were restored" in said
    record(warehouse, a_history(300), LinePublisher(connection, "two"))
    assert "is in the chain" in check()[1]


def test_what_cannot_be_compared_is_said(connection, check, tmp_path):
    create_tables(tmp_path / "warehouse")
    record(tmp_path / "warehouse", a_history(300))

    code, said, _ = check()
    assert (code, f"1 skipped: no line was published in {connection.topics.chain}" in said) == (0, True)
    code, said, _ = check("--prefix", "nowhere")
    assert (code, "1 skipped: there is no topic nowhere.chain; `wakeroll run`" in said) == (0, True)
    code, said, complaint = check("--bootstrap", "127.0.0.1:1", "--json")
    document = json.loads(said)
    [rule] = [one for one in document["rules"] if one["status"] != "ok"]
    assert (code, rule["name"], rule["status"]) == (3, "chain.published", "not_checked")
    assert "no Kafka broker answered at 127.0.0.1:1" in rule["reason"]
    assert "no Kafka broker answered" in complaint


def test_a_publisher_without_brokers_warns_once_and_disturbs_nobody(caplog):
    publisher = LinePublisher(Connection("127.0.0.1:1"), "one")
    with caplog.at_level(logging.INFO, "wakeroll.run"):
        for number in (1, 2):
            publisher.publish([Head("events", number, "0" * 64)])
        publisher.close()

    [warning] = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    assert warning == (
        "the newest lines of the chains are not published in wakeroll.chain: no broker answered in time; the tables "
        "are written anyway"
    )


def test_a_line_is_sent_once_and_foreign_records_are_left_out(connection):
    publisher = LinePublisher(connection, "one")
    head = Head("events", 1, "0" * 64)
    for _ in range(2):
        publisher.publish([head])
        publisher._producer.flush(30)
    publisher.publish([head, Head("offsets", 1, "1" * 64)])
    publisher.close()
    producer = connection.producer()
    for value in (b"", b"{}", b"[1]", b'{"table": "events", "number": "x"}', None):
        producer.produce(connection.topics.chain, value, b"foreign")
    producer.flush(30)

    assert [(one.table, one.number) for one in read_published(connection) or ()] == [("events", 1), ("offsets", 1)]
    consumer = connection.consumer()
    consumer.assign([TopicPartition(connection.topics.chain, 0, OFFSET_BEGINNING)])
    [first] = consumer.consume(1, 60)
    consumer.close()
    assert (first.key() or b"").startswith(b"events/one-")
