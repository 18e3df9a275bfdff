"""Fences and appends in an S3 store: of two commits that meet, the store refuses the second one."""

import threading
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable

from tests.support.systems.s3_server import S3Server
from wakeroll_model.rows import EVENTS, EventRow
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.sinks import arrow_sink
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.sinks.table_fence import Fenced, Fences, opened
from wakeroll_pipeline.storage.place import Place

pytest.importorskip("moto.server", reason="needs the package moto: pip install 'moto[s3,server]'")
pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def table(store: S3Server, request: pytest.FixtureRequest) -> Place:
    """Return an empty table."""
    place = store.place(request.node.name) / EVENTS.name
    location, options = place.for_deltalake()
    DeltaTable.create(location, arrow_schema_of(EventRow), storage_options=options)
    return place


def append(sink: ArrowSink, table: Place, offset: int) -> None:
    row = EventRow(topic="t", partition=0, offset=offset, at_ms=1, key=None, value=b"", type=None)
    sink.append(arrow_table(EventRow, [row]), table)


def count_in(table: Place) -> int:
    """Return the number of files: each append makes one."""
    return len(opened(table).file_uris())


def test_of_many_that_raise_the_same_fence_one_succeeds(table: Place):
    """Two processes without a lock that holds would take the same turn."""
    done: list[bool] = []

    def try_to_raise() -> None:
        try:
            Fences([table]).raise_to(7)
        except Fenced:
            done.append(False)
        else:
            done.append(True)

    threads = [threading.Thread(target=try_to_raise) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    assert sorted(done) == [False] * 7 + [True]


def test_of_many_that_register_a_log_one_at_a_time_succeeds(table: Place):
    fences = Fences([table])
    threads = [threading.Thread(target=fences.register, args=(f"log-{number}", -1)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()

    known = [found for number in range(8) if (found := fences.generation(f"log-{number}")) is not None]
    assert sorted(known) == list(range(len(known)))
    assert known


def test_an_append_is_refused_when_a_later_fence_was_raised_before_its_commit(
    table: Place, monkeypatch: pytest.MonkeyPatch
):
    """Both have read the same version of the table; the store lets only one of them write the next version."""
    fences, sink = Fences([table]), ArrowSink(7)
    fences.raise_to(7)
    append(sink, table, 1)
    write = arrow_sink.write_deltalake

    def overtaken(*args: object, **named: object) -> None:
        fences.raise_to(8)
        write(*args, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(arrow_sink, "write_deltalake", overtaken)
        with pytest.raises(Fenced, match="its fence is 8, that of this process 7"):
            append(sink, table, 2)
    append(ArrowSink(8), table, 3)

    assert count_in(table) == 2


def test_a_store_that_refuses_some_requests_loses_no_append(store: S3Server, table: Place):
    """A batch is marked as done when its append has returned."""
    Fences([table]).raise_to(7)
    sink = ArrowSink(7)
    store.every_nth_fails = 5
    try:
        for offset in range(10):
            append(sink, table, offset)
    finally:
        store.every_nth_fails = 0

    assert count_in(table) == 10
