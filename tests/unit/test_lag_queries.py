"""The queries of the ledger about lag, in DuckDB, on tables of a few rows."""

from collections.abc import Iterator

import duckdb
import msgspec
import pytest

from wakeroll_model.events import Arrival, Event, Route, RoutedQueue
from wakeroll_model.queue import Queue
from wakeroll_pipeline.ledger.view_queries import views

QUEUE = Queue("orders", "", 0)


@pytest.fixture
def tables() -> Iterator[duckdb.DuckDBPyConnection]:
    """One group that committed offset 20 of one queue."""
    with duckdb.connect() as tables:
        tables.execute("create table events (at_ms bigint, type text, partition int, value blob)")
        tables.execute(
            "create table current_offsets as select 'billing' as group_id, 'orders' as topic, '' as broker, "
            "0 as queue_id, null as slice, 'c1' as client_id, 20 as committed_offset, 5 as at_ms, 'clustering' as mode"
        )
        tables.execute(
            "create table current_assignments as select 'billing' as group_id, 'orders' as topic, '' as broker, "
            "0 as queue_id, null as slice, 'c1' as client_id"
        )
        queries = dict(views("duckdb"))
        for name in ("end_offsets", "lag"):
            tables.execute(f"create view {name} as {queries[name]}")
        yield tables


def append(tables: duckdb.DuckDBPyConnection, at_ms: int, event: Event) -> None:
    tables.execute("insert into events values (?, ?, 0, ?)", [at_ms, event.__struct_config__.tag, _encode(event)])


def route(end: int, first: int) -> Route:
    queue = RoutedQueue(topic="orders", broker="", queue_id=0, min_offset=first, max_offset=end)
    return Route(topic="orders", queues=[queue], version="1")


def lag_of(tables: duckdb.DuckDBPyConnection) -> tuple[int, int]:
    """Return the lag in messages and in ms."""
    [row] = tables.execute("select lag_messages, lag_ms from lag").fetchall()
    return row


_encode = msgspec.json.Encoder().encode


def test_the_lag_begins_at_the_committed_offset(tables):
    append(tables, 10, route(100, 0))
    append(tables, 30, route(100, 0))

    assert lag_of(tables) == (80, 20)


def test_an_arrival_without_an_offset_says_nothing_about_the_end(tables):
    """The coordinator rejects it, and a lag of 0 would stop the workers of the group."""
    append(tables, 10, route(100, 0))
    junk = b'{"type": "arrival", "queue": {"topic": "orders", "queue_id": 0}}'
    tables.execute("insert into events values (20, 'arrival', 0, ?)", [junk])

    assert lag_of(tables) == (80, 10)


def test_messages_that_were_deleted_unread_are_no_lag(tables):
    append(tables, 10, route(50, 0))
    append(tables, 30, route(100, 60))
    append(tables, 40, Arrival(queue=QUEUE, next_offset=110, observer="o"))

    assert lag_of(tables) == (50, 10), "the oldest message that is left came with the second route"


def test_an_empty_queue_has_no_lag(tables):
    append(tables, 10, route(100, 0))
    append(tables, 30, route(100, 100))

    assert lag_of(tables) == (0, 0)


@pytest.mark.parametrize(("end", "lag"), [(100, None), (60, 0)], ids=["with messages", "without messages"])
def test_an_owned_queue_without_a_committed_offset_is_listed_with_what_is_known(tables, end, lag):
    tables.execute("delete from current_offsets")
    append(tables, 10, route(end, 60))

    [row] = tables.execute("select group_id, client_id, committed_offset, end_offset, lag_messages from lag").fetchall()
    assert row == ("billing", None, None, end, lag)


def test_a_queue_that_nobody_owns_or_has_committed_is_not_listed(tables):
    tables.execute("delete from current_offsets")
    tables.execute("update current_assignments set client_id = null")
    append(tables, 10, route(100, 0))

    assert tables.execute("select * from lag").fetchall() == []
