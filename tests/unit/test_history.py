"""Moments are rebuilt once for all who wait, not at all for nobody; the work is bounded; new records are found."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from tests.support.archived_states import shard_at
from tests.support.control_log import START_MS
from tests.support.delta_tables import write_tables
from tests.support.ledgers import PARTITIONS, Story, a_day
from wakeroll.connection import Topics
from wakeroll.errors import InvalidUsage
from wakeroll_model.records import kind_of_topic
from wakeroll_model.snapshot_proof import proven
from wakeroll_pipeline.ledger import shared_ledger
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.shared_ledger import SharedLedger
from wakeroll_pipeline.ledger.stored_snapshots import row_of
from wakeroll_pipeline.live.ledger_reader import model_of
from wakeroll_pipeline.serve import history as history_module
from wakeroll_pipeline.serve.access.refusal import NoAnswer
from wakeroll_pipeline.serve.history import MOST_MOMENTS, History
from wakeroll_pipeline.serve.page_threads import MOST_WAITING, WORKERS

AT_MS = START_MS + 8_000


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home") / "warehouse"
    write_tables(folder, a_day())
    return folder


@pytest.fixture
def history(warehouse: Path) -> Iterator[History]:
    opened = History(warehouse, Topics(), PARTITIONS)
    yield opened
    opened.close()


def test_a_moment_is_rebuilt_once_for_all_who_wait(history):
    async def ask() -> list[object]:
        moments = await asyncio.gather(*(history.moment(AT_MS) for _ in range(5)))
        return [*moments, await history.moment(AT_MS)]

    first, *others = asyncio.run(ask())

    assert all(one is first for one in others)


def test_a_moment_for_which_nobody_waits_any_more_is_not_rebuilt(history):
    """A slider that moves on leaves moments behind that nobody has seen."""

    async def ask() -> None:
        free = threading.Event()
        extent = await history.extent()
        busy = [asyncio.ensure_future(history.workers.run(free.wait)) for _ in range(WORKERS)]
        left = asyncio.ensure_future(history.moment(AT_MS))
        await asyncio.sleep(0)
        left.cancel()
        free.set()
        await asyncio.gather(*busy)
        with pytest.raises(asyncio.CancelledError):
            await left
        assert extent.first_ms == START_MS
        await history.moment(AT_MS + 1_000)

    asyncio.run(ask())

    assert list(history.known) == [AT_MS + 1_000]


def test_one_who_leaves_does_not_disturb_the_others(history):
    async def ask() -> object:
        stays, leaves = (asyncio.ensure_future(history.moment(AT_MS)) for _ in range(2))
        await asyncio.sleep(0)
        leaves.cancel()
        return await stays

    assert asyncio.run(ask()).at_ms == AT_MS


def test_a_few_moments_are_kept(history):
    async def ask() -> None:
        for number in range(MOST_MOMENTS + 3):
            await history.moment(AT_MS + number)

    asyncio.run(ask())

    assert list(history.known) == [AT_MS + number for number in range(3, MOST_MOMENTS + 3)]


def test_a_moment_near_the_end_is_rebuilt_when_more_is_archived(tmp_path, monkeypatch):
    """A shard may be archived later than another one, so the end of the log is not final."""
    monkeypatch.setattr(shared_ledger, "CHECK_EVERY_S", 0.0)
    monkeypatch.setattr(history_module, "CHECK_EVERY_S", 0.0)
    story = a_day()
    write_tables(tmp_path, story)
    opened, end_ms, before = History(tmp_path, Topics(), PARTITIONS), story.now_ms, len(story.rows)

    async def ask() -> list[bool]:
        early, late = await opened.moment(AT_MS), await opened.moment(end_ms)
        assert await opened.moment(end_ms) is late
        story.pass_seconds(5)
        del story.rows[:before]
        story.snapshots.clear()
        write_tables(tmp_path, story)
        return [await opened.moment(AT_MS) is early, await opened.moment(end_ms) is late]

    assert asyncio.run(ask()) == [True, False]
    opened.close()


def test_too_many_requests_are_refused(history):
    """Each may cost seconds; without a bound, a reader who is impatient would stop all others."""

    async def ask() -> None:
        free = threading.Event()
        busy = [asyncio.ensure_future(history.workers.run(free.wait)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        with pytest.raises(NoAnswer, match="try again in some seconds") as refused:
            await history.workers.run(free.wait)
        free.set()
        await asyncio.gather(*busy)
        assert refused.value.status == 503

    asyncio.run(ask())


def test_pages_of_the_present_do_not_wait_for_the_past(history):
    """Every page shows which period is archived; the threads may be busy with long replays."""

    async def ask() -> object:
        free = threading.Event()
        busy = [asyncio.ensure_future(history.workers.run(free.wait)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)
        extent = await history.extent()
        free.set()
        await asyncio.gather(*busy)
        return extent.first_ms

    assert asyncio.run(ask()) == START_MS


def test_a_reader_of_many_threads_sees_new_records(tmp_path, monkeypatch):
    """`record` appends while the page is open; a cursor that is open keeps its version."""
    monkeypatch.setattr(shared_ledger, "CHECK_EVERY_S", 0.0)
    story = a_day()
    write_tables(tmp_path, story)
    ledger, before = SharedLedger(tmp_path), len(story.rows)
    first = ledger.extent()
    with ledger.cursor() as held:
        rows = held.rows("select count(*) as number from events")
        story.pass_seconds(5)
        del story.rows[:before]
        story.snapshots.clear()
        write_tables(tmp_path, story)

        assert ledger.extent().to_ms == first.to_ms + 5_000
        assert held.rows("select count(*) as number from events") == rows
    assert ledger.extent().from_ms == first.from_ms == START_MS
    ledger.close()


def test_a_snapshot_that_leads_nowhere_is_reported(tmp_path):
    """The page must give a reason and stay alive, however the tables look."""
    story = a_day()
    rubbish = [structs.replace(row_of(one), body=b"rubbish") for one in story.snapshots]
    story.snapshots[:] = [structs.astuple(proven(one)) for one in rubbish]
    write_tables(tmp_path, story)
    opened = History(tmp_path, Topics(), PARTITIONS)
    with pytest.raises(NoAnswer, match="cannot be rebuilt"):
        asyncio.run(opened.moment(START_MS + 40_000))
    opened.close()


def test_missing_files_are_reported(tmp_path):
    """A cleanup has deleted the files of the version that is open."""
    write_tables(tmp_path, a_day())
    ledger = SharedLedger(tmp_path)
    ledger.extent()
    for file in (tmp_path / "decisions").glob("*.parquet"):
        file.unlink()
    with pytest.raises(InvalidUsage, match=r"table .decisions.: the file .* is missing"), ledger.cursor() as opened:
        opened.rows("select * from decisions")
    ledger.close()


def test_tables_may_be_created_later(tmp_path):
    ledger = SharedLedger(tmp_path)
    with pytest.raises(InvalidUsage, match="no table 'events'"):
        ledger.extent()
    write_tables(tmp_path, a_day())

    assert ledger.extent().from_ms == START_MS
    ledger.close()


def test_a_moment_is_the_state_of_the_shards_although_the_clock_steps_back(tmp_path):
    """Records up to the last one that is not after the moment count, also those between with a later time."""
    story = Story()
    story.route("orders", 4, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(8)
    story.now_ms -= 3_000
    story.join("billing", "c2", "orders")
    story.pass_seconds(6)
    write_tables(tmp_path, story)
    with duck_ledger(tmp_path) as ledger:
        for number in range(1, 11):
            at_ms = START_MS + number * 1_000
            model = model_of(ledger, Topics(), PARTITIONS, at_ms)
            for place, follower in model.shards.items():
                if kind_of_topic(place[0]) == "groups":
                    assert follower.shard.body() == shard_at(ledger, place, PARTITIONS, at_ms).body(), number
