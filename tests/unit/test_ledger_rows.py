"""Which rows `record` makes of Kafka's records, whatever anybody has appended."""

import json

import pytest
from msgspec import structs

from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, AssignmentRow, OffsetRow
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, newest_of, read_decisions, rows_of
from wakeroll_pipeline.operators.recorded_fields import type_of

OFFSET = {
    "kind": "offset",
    "shard": "groups-0.1",
    "seq": 1,
    "group_id": "billing",
    "client_id": "c1",
    "at_ms": 5,
    "cause": {"topic": "wakeroll.groups", "partition": 0, "offset": 3},
    "queue": {"topic": "orders", "broker": "", "queue_id": 1},
    "offset": 40,
    "epoch": 2,
}
HANDOVER = {key: value for key, value in OFFSET.items() if key not in ("client_id", "offset")} | {
    "kind": "handover",
    "from": None,
    "to": "c1",
    "how": "first",
}


def published(value: object, offset: int = 0, writer: bytes | None = None) -> KafkaRecord:
    """Return the record of a decision, or of any bytes."""
    body = value if isinstance(value, bytes) or value is None else json.dumps(value).encode()
    return KafkaRecord("wakeroll.decisions", 0, offset, 1_000 + offset, b"", body, writer)


def rows(*values: object, table: str = DECISIONS.name) -> list:
    """Return the rows of a table that the decisions of one Kafka partition lead to."""
    decisions = read_decisions(published(value, offset) for offset, value in enumerate(values))
    return [one.row for one in rows_of([], decisions)[table]]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"nonsense",
        b"\xff\xfe{",
        b"{}",
        b"[1]",
        b"[" * 100_000,
        json.dumps(OFFSET).encode()[:-1] + b', "metadata": "\xff"}',
        *({key: value for key, value in OFFSET.items() if key != name} for name in ("shard", "seq", "kind", "cause")),
        {**OFFSET, "seq": 0},
        {**OFFSET, "seq": 2**63},
        {**OFFSET, "at_ms": None},
        {**OFFSET, "at_ms": -(2**63) - 1},
        {**OFFSET, "cause": {"topic": "t", "partition": 0, "offset": 2**63}},
    ],
)
def test_a_record_that_is_no_decision_is_skipped_and_hides_none(value):
    """A foreign producer must not stop the tables, nor make a real decision look like a repetition."""
    assert [row.seq for row in rows(value, OFFSET)] == [1]


def test_a_decision_that_kafka_has_twice_is_one_row():
    """Spark's sink repeats a batch after a crash."""
    assert [row.published_ms for row in rows(OFFSET, OFFSET, {**OFFSET, "seq": 2}, OFFSET)] == [1_000, 1_002]


def test_decisions_of_an_older_era_are_dropped_after_a_newer_one():
    """A coordinator that another one has replaced still publishes."""
    read = rows(OFFSET, {**OFFSET, "shard": "groups-0.10"}, {**OFFSET, "shard": "groups-0.9", "seq": 7})

    assert [(row.shard, row.seq) for row in read] == [("groups-0.1", 1), ("groups-0.10", 1)]


def test_a_kind_of_a_later_version_is_stored():
    """A rolling upgrade may begin with the coordinator."""
    [row] = rows({**OFFSET, "kind": "later", "more": [1]})

    assert (row.kind, structs.asdict(row.cause)) == ("later", OFFSET["cause"])
    assert json.loads(row.json)["more"] == [1]


@pytest.mark.parametrize(
    ("times", "from_ms"),
    [({}, 5), ({"released_ms": 7}, 7), ({"released_ms": 7, "assigned_ms": 0}, 0)],
)
def test_an_ownership_begins_when_the_queue_was_assigned(times, from_ms):
    """Or when it became free, or else at the decision; zero is a time too."""
    [row] = rows({**HANDOVER, **times}, table=ASSIGNMENTS.name)

    queue = {"topic": "orders", "broker": "", "queue_id": 1}
    names = {"shard": "groups-0.1", "seq": 1, "partition": 0, "group_id": "billing"}
    assert row == AssignmentRow(
        **names, **queue, client_id="c1", epoch=2, from_ms=from_ms, previous_client_id=None, how="first"
    )


def test_a_committed_offset_of_an_old_decision_is_the_groups():
    """Decisions from before the broadcasting mode have no mode."""
    [row] = rows(OFFSET, table=OFFSETS.name)

    names = {"shard": "groups-0.1", "seq": 1, "partition": 0, "group_id": "billing", "client_id": "c1"}
    queue = {"topic": "orders", "broker": "", "queue_id": 1}
    assert row == OffsetRow(**names, **queue, committed_offset=40, epoch=2, at_ms=5, reset_by=None, mode="clustering")


@pytest.mark.parametrize("wrong", [{"offset": -1}, {"epoch": -2}, {"queue": None}, {"queue": {"topic": "orders"}}])
def test_an_offset_that_its_table_refuses_is_only_a_decision(wrong):
    """One such row would fail the append of every later batch."""
    assert rows({**OFFSET, **wrong}, table=OFFSETS.name) == []
    assert len(rows({**OFFSET, **wrong})) == 1


def test_an_event_is_stored_byte_for_byte_whatever_its_bytes_are():
    """A replay reads them again."""
    record = KafkaRecord("wakeroll.groups", 3, 9, 4, b"\xff", b"\xff\x00", None)

    [placed] = rows_of([record], [])[EVENTS.name]

    assert (placed.row.key, placed.row.value, placed.row.type) == (b"\xff", b"\xff\x00", None)
    assert (placed.stream, placed.position) == (("wakeroll.groups", 3), (0, 9))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (b'{"a": {"type": "no"}, "type": "yes"}', "yes"),
        ('{"type": "日本\\n"}'.encode(), "日本\n"),
        (b'{"type": 5}', "5"),
        (b'{"type": ""}', ""),
        (b'{"type": null}', None),
        (b'{"type": "x"', None),
        (b"[1]", None),
        (b'{"type": "\xff"}', None),
        (None, None),
    ],
)
def test_the_type_of_an_event_is_its_own_field(value, found):
    """Rejected events keep the type that they claim."""
    assert type_of(value) == found


def test_a_header_that_is_no_text_names_a_writer_all_the_same():
    """A foreign producer must not stop the tables."""
    read = read_decisions([published(OFFSET, writer=b"\xff"), published(OFFSET, writer=b"b@host:1"), published(OFFSET)])

    assert [one.writer for one in read] == ["\ufffd", "b@host:1", None]


def test_the_newest_position_is_that_of_the_newest_era():
    """As text, era 9 would sort after era 10."""
    highest = {(0, "groups-0.9"): 700, (0, "groups-0.10"): 1, (1, "groups-1.1"): 4}

    assert newest_of(DECISIONS, highest) == {(0, "groups-0"): (10, 1), (1, "groups-1"): (1, 4)}
    assert newest_of(EVENTS, {("t", 0): 8}) == {("t", 0): (0, 8)}
