"""Upkeep of the tables: many small files become few, what is old goes, and no answer changes."""

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.ledgers import PARTITIONS, three_days, write_ledger
from tests.support.spark_tables import append
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.epoch_ms import now_ms
from wakeroll_model.config import SNAPSHOT_SPAN
from wakeroll_model.rows import CHAIN, DECISIONS, DIVERGENCES, EVENTS, RECORDED, SNAPSHOTS, TABLES, Table
from wakeroll_model.shard_state import VERSION
from wakeroll_pipeline.ledger.archived_log import cut_logs
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger
from wakeroll_pipeline.ledger.expired_versions import delete_expired
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.maintenance import Upkeep
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.retention import DAY_MS, Past, forget, past_of
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.table_creation import create_tables, path_of
from wakeroll_pipeline.ledger.tables import ensure_tables, open_views
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows
from wakeroll_pipeline.questions.replay_here import replay_here
from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark

VIEWS = ("current_assignments", "current_offsets", "current_members", "groups")


def rows_of(ledger: Ledger, name: str) -> list[str]:
    return sorted(str(row) for row in ledger.rows(f"select * from {name}"))


def highest_of(ledger: Ledger, table: Table) -> set[tuple[object, ...]]:
    """Return the streams of a table, each with its highest position."""
    stream = ", ".join(table.stream)
    return {*ledger.stream(f'select {stream}, max("{table.position}") from {table.name} group by {stream}')}


def put(warehouse: Path, table: Table, rows: Sequence[tuple[object, ...]]) -> None:
    """Append rows to a table, as one file."""
    schema = arrow_schema_of(table.row)
    values = [dict(zip(schema.names, row, strict=True)) for row in rows]
    write_deltalake(path_of(warehouse, table).path, pa.Table.from_pylist(values, schema=schema), mode="append")


def cause(offset: int) -> dict[str, object]:
    return {"topic": "wakeroll.groups", "partition": 0, "offset": offset}


def left_in(warehouse: Path, table: Table, *columns: str) -> list[tuple[Any, ...]]:
    """Return the values of some columns, sorted."""
    rows = DeltaTable(path_of(warehouse, table).path).to_pyarrow_table(columns=[*columns])
    return sorted(zip(*(rows[column].to_pylist() for column in columns), strict=True))


def live_files(warehouse: Path, table: Table) -> int:
    return len(DeltaTable(path_of(warehouse, table).path).file_uris())


def turn_back_clocks(folder: Path) -> None:
    """Let the files here be two hours old; their order stays."""
    ago_s = time.time() - 7_200
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, times=(ago_s + number, ago_s + number))


class Kept(NamedTuple):
    """A ledger whose first day is old and gone, and what it said before."""

    ledger: Ledger
    before: dict[str, list[str]]
    """Table or view -> its rows."""
    highest: dict[str, set[tuple[object, ...]]]
    """Table -> its streams, each with its highest position."""


@pytest.fixture(scope="module")
def kept(open_in, days, cut) -> Kept:
    """In each engine."""
    ledger = open_in(days)
    before = {name: rows_of(ledger, name) for name in (*TABLES, *VIEWS)}
    highest = {table.name: highest_of(ledger, table) for table in TABLES.values()}
    return Kept(open_in(cut), before, highest)


def test_what_is_old_goes_and_the_views_say_the_same(kept):
    """Whoever joined before the oldest row is a member all the same, and owns what was given to it then."""
    for name in VIEWS:
        assert rows_of(kept.ledger, name) == kept.before[name] != [], name
    for table in RECORDED:
        assert set(rows_of(kept.ledger, table.name)) < set(kept.before[table.name]), table.name


def test_of_what_was_said_only_the_last_words_are_kept(kept):
    """The first commit of a queue was followed by a second one before the history begins."""
    offsets = kept.ledger.rows("select queue_id, committed_offset from offsets where group_id = 'billing'")
    said = {number: {row.committed_offset for row in offsets if row.queue_id == number} for number in range(4)}

    assert {frozenset(of_queue) for of_queue in said.values()} == {frozenset({20, 30})}
    handovers = kept.ledger.stream("select shard, seq from handovers order by all")
    assert [*handovers] == [*kept.ledger.stream("select shard, seq from assignments order by all")]


def test_all_that_is_archived_is_decided_again_alike(kept):
    """The log begins behind a snapshot; the last words of before it are nothing to compare."""
    ledger = kept.ledger
    cut = cut_logs(ledger)

    replay = replay_here if isinstance(ledger, DuckLedger) else replay_in_spark
    done = replay(ledger, PARTITIONS, Period())

    assert len(cut) == 2 * PARTITIONS
    assert {one.differences for one in done} == {0}
    assert {one.after for one in done} == {first - 1 for first in cut.values()}
    since = "(select min(at_ms) from events)"
    [recorded] = ledger.rows(f"select count(*) as decisions from decisions where at_ms >= {since}")
    assert sum(one.compared for one in done) == recorded.decisions > 0


@pytest.mark.operate
def test_what_began_with_nothing_that_is_left_is_named_and_the_rest_compared(spark, cut):
    """As for an era that began without a snapshot, and took its first one only later."""
    open_views(spark, cut)
    spark.sql(
        "create or replace temporary view snapshots as select topic, partition, offset, version, at_ms, body, "
        "row_hash, if(offset = min(offset) over (partition by topic, partition), 0, era) as era "
        f"from delta.`{path_of(cut, SNAPSHOTS)}`"
    )
    done = replay_in_spark(SparkLedger(spark), PARTITIONS, Period())

    assert {one.differences for one in done} == {0}
    assert sum(one.events for one in done) > 0
    unknown = [one.why for one in done if one.unknown]
    assert unknown != []
    assert all("are not archived" in why for why in unknown)


@pytest.mark.operate
def test_what_is_left_keeps_the_rules_of_a_history(spark, cut):
    """Between the last words that are kept there are gaps, which are nobody's fault."""
    open_views(spark, cut)
    with broken_rows(spark) as broken:
        assert broken.collect() == []


def test_a_stream_keeps_its_highest_row(kept):
    """It says how far the table has come; without it a repeated batch would be written twice."""
    for table in TABLES.values():
        assert highest_of(kept.ledger, table) == kept.highest[table.name]


def test_nothing_goes_without_a_snapshot_to_begin_with(open_in, cut, kept, monkeypatch):
    """A log that begins with nothing in the middle of a story would be decided otherwise."""
    monkeypatch.setattr("wakeroll_pipeline.ledger.retention.READABLE", range(VERSION + 1, VERSION + 2))
    before = {table.name: rows_of(kept.ledger, table.name) for table in RECORDED}

    past = past_of(cut, three_days().now_ms + 100 * DAY_MS, DAY_MS, DAY_MS)
    for table in RECORDED:
        forget(cut, table, past)
    ledger = open_in(cut)

    assert past.begins == {}
    assert {table.name: rows_of(ledger, table.name) for table in RECORDED} == before


def test_a_group_that_was_forgotten_and_a_client_that_left_say_no_last_words(tmp_path):
    """Else names that are made up again at each start would stay for ever."""
    create_tables(tmp_path)
    said = [
        ("membership", "gone", "c", '{"change": "joined"}'),
        ("offset", "gone", "c", '{"queue": {"topic": "t", "broker": "", "queue_id": 1}, "mode": "clustering"}'),
        ("membership", "gone", "", '{"change": "forgotten"}'),
        ("membership", "here", "left", '{"change": "joined"}'),
        ("membership", "here", "left", '{"change": "left"}'),
        ("membership", "here", "stays", '{"change": "joined"}'),
        ("membership", "here", "stays", '{"change": "resubscribed"}'),
        ("membership", "here", "stays", '{"change": "resubscribed"}'),
        # The highest of its stream is kept, whatever it says; so is the highest offset, the one above.
        ("membership", "last", "c", '{"change": "left"}'),
    ]
    rows = [
        ("groups-0.1", seq, kind, group, client, seq, cause(seq), seq, 0, json)
        for seq, (kind, group, client, json) in enumerate(said, 1)
    ]
    put(tmp_path, DECISIONS, rows)

    forget(tmp_path, DECISIONS, Past({("wakeroll.groups", 0): 100}, DAY_MS, DAY_MS))

    assert left_in(tmp_path, DECISIONS, "seq") == [(2,), (6,), (8,), (9,)]


def test_what_was_decided_last_is_kept_whatever_its_log_time(tmp_path):
    """A leader's clock steps back, and era 10 is newer than era 9 at the same log time."""
    create_tables(tmp_path)
    queues = [f'"queue": {{"topic": "t", "broker": "", "queue_id": {number}}}' for number in range(4)]
    said = [
        ("groups-0.10", 1, "handover", "c", 5_000, f'{{{queues[0]}, "to": "gone"}}'),
        ("groups-0.10", 2, "handover", "c", 4_300, f'{{{queues[0]}, "to": "here"}}'),
        ("groups-0.9", 7, "offset", "c", 3_000, f'{{{queues[1]}, "mode": "clustering"}}'),
        ("groups-0.10", 3, "offset", "c", 3_000, f'{{{queues[1]}, "mode": "clustering"}}'),
        ("groups-0.10", 4, "membership", "left", 5_000, '{"change": "joined"}'),
        ("groups-0.10", 5, "membership", "left", 4_300, '{"change": "left"}'),
        ("groups-0.10", 6, "membership", "back", 5_000, '{"change": "left"}'),
        ("groups-0.10", 7, "membership", "back", 4_300, '{"change": "joined"}'),
        # The highest of its kind is kept in each shard, whatever it says.
        ("groups-0.10", 8, "handover", "c", 4_300, f'{{{queues[2]}, "to": "here"}}'),
        ("groups-0.9", 8, "offset", "c", 3_000, f'{{{queues[3]}, "mode": "clustering"}}'),
        ("groups-0.10", 9, "membership", "last", 4_300, '{"change": "left"}'),
    ]
    rows = [
        (shard, seq, kind, "here", client, at_ms, cause(number), at_ms, 0, json)
        for number, (shard, seq, kind, client, at_ms, json) in enumerate(said)
    ]
    put(tmp_path, DECISIONS, rows)

    forget(tmp_path, DECISIONS, Past({("wakeroll.groups", 0): 100}, DAY_MS, DAY_MS))

    assert left_in(tmp_path, DECISIONS, "shard", "seq") == [
        *(("groups-0.10", seq) for seq in (2, 3, 6, 7, 8, 9)),
        ("groups-0.9", 8),
    ]


def test_of_older_snapshots_the_last_of_each_day_is_kept(tmp_path):
    """Eight shards every ten minutes are a thousand states a day."""
    create_tables(tmp_path)
    hour_ms = 3_600_000
    rows = [
        ("wakeroll.groups", 0, number, 1, VERSION, number * 6 * hour_ms, bytearray(b"state"), None)
        for number in range(1, 20)
    ]
    rows += [
        ("wakeroll.groups", 0, number, 2, VERSION, 60 * hour_ms, bytearray(b"state"), None) for number in (8, 12, 14)
    ]
    put(tmp_path, SNAPSHOTS, rows)

    forget(tmp_path, SNAPSHOTS, Past({("wakeroll.groups", 0): 7}, DAY_MS, DAY_MS, keep_snapshots=1))

    left = left_in(tmp_path, SNAPSHOTS, "era", "offset")
    assert [offset for era, offset in left if era == 1] == [7, 11, 15, 16, 17, 18, 19]
    assert [offset for era, offset in left if era == 2] == [8, 14], "what the era began with, too"


def test_older_snapshots_of_a_busy_shard_are_a_bounded_number_of_records_apart(tmp_path):
    """The last one of a day is millions of records away from most moments of that day."""
    create_tables(tmp_path)
    step = SNAPSHOT_SPAN // 5
    taken = [(number * step, number * 1_000) for number in range(1, 18)] + [(100 * step, 3 * DAY_MS)]
    rows = [("wakeroll.groups", 0, offset, 1, VERSION, at_ms, bytearray(b"state"), None) for offset, at_ms in taken]
    put(tmp_path, SNAPSHOTS, rows)

    forget(tmp_path, SNAPSHOTS, Past({}, 0, 0, keep_snapshots=1))

    assert [offset // step for (offset,) in left_in(tmp_path, SNAPSHOTS, "offset")] == [4, 9, 14, 17, 100]


def test_the_newest_snapshots_of_a_shard_are_kept_however_old_they_are(tmp_path):
    """If the newest one is damaged, the next start needs the one before it."""
    create_tables(tmp_path)
    rows = [
        ("wakeroll.groups", 0, number, 1, VERSION, number * 60_000, bytearray(b"state"), None) for number in range(9)
    ]
    put(tmp_path, SNAPSHOTS, rows)

    forget(tmp_path, SNAPSHOTS, Past({}, 0, 0, keep_snapshots_ms=60_000, keep_snapshots=4))

    assert left_in(tmp_path, SNAPSHOTS, "offset") == [(5,), (6,), (7,), (8,)]


@pytest.mark.operate
def test_no_record_is_deleted_that_only_a_damaged_snapshot_makes_superfluous(tmp_path):
    """Otherwise the state at the beginning of the archived log could never be had again."""
    story = three_days()
    write_ledger(tmp_path / "sound", story)
    first = min(row[2] for row in story.snapshots if row[:2] == ("wakeroll.groups", 0))
    story.snapshots[:] = [
        (*row[:6], row[6][:-1], row[7]) if row[:3] == ("wakeroll.groups", 0, first) else row for row in story.snapshots
    ]
    write_ledger(tmp_path / "damaged", story)

    sound, damaged = (past_of(tmp_path / name, story.now_ms, DAY_MS, DAY_MS) for name in ("sound", "damaged"))

    assert sound.begins["wakeroll.groups", 0] == first
    assert sound.begins == damaged.begins | {("wakeroll.groups", 0): first}
    assert ("wakeroll.groups", 0) not in damaged.begins


@pytest.mark.operate
def test_small_files_become_one_and_an_end_in_between_does_no_harm(spark, tmp_path):
    """The files of before stay until nobody reads them any more; a round that did not come so far is made up for."""
    ensure_tables(spark, tmp_path, keep_versions_ms=3_600_000)
    path = path_of(tmp_path, EVENTS)
    folder = path.path
    spark.sql(f"alter table delta.`{path}` set tblproperties ('delta.checkpointInterval' = '4')")
    for number in range(8):
        row = ("wakeroll.groups", 0, number, number, None, bytearray(b"{}"), "tick")
        append(spark.createDataFrame([row], schema_of(EVENTS.row)), path)
    assert live_files(tmp_path, EVENTS) == 8

    compact(path, EVENTS)  # ... and the process dies here
    assert live_files(tmp_path, EVENTS) == 1
    assert len(list(folder.glob("*.parquet"))) == 9
    old = spark.read.format("delta").option("versionAsOf", 9).load(str(path))
    assert old.count() == 8

    turn_back_clocks(folder / "_delta_log")
    delete_expired(path, 0, now_ms())

    assert len(list(folder.glob("*.parquet"))) == 1
    versions = sorted(int(file.stem) for file in (folder / "_delta_log").glob("*.json"))
    assert versions[0] >= 8
    found = spark.read.format("delta").load(str(path)).orderBy("offset").collect()
    assert [row.offset for row in found] == list(range(8))


@pytest.mark.operate
def test_a_round_of_upkeep_looks_after_every_table(open_in, days, kept, tmp_path):
    """One step at a time; between two of them rows may be appended."""
    settings = Settings(home=str(tmp_path), upkeep_interval_ms=1_000)
    shutil.copytree(days, settings.warehouse)
    upkeep = Upkeep(settings)

    def few() -> bool:
        upkeep.step()
        # Nothing diverges in the story, and its lines are in the commits.
        empty = (CHAIN, DIVERGENCES)
        return all(live_files(settings.warehouse, table) == (table not in empty) for table in TABLES.values())

    assert live_files(settings.warehouse, EVENTS) == 2
    wait_until(few, "each table has one file", patience_s=PATIENCE_WITH_SPARK_S)
    ledger = open_in(settings.warehouse.path)

    facts = DeltaTable(settings.warehouse.path / "daily_facts").to_pyarrow_table().to_pylist()
    assert {(str(row["day"]), row["group_id"]) for row in facts} == {("2023-11-14", "audit"), ("2023-11-14", "billing")}
    # The story is long past; but what is behind its last snapshot but one stays.
    assert 0 < len(rows_of(ledger, "events")) < len(kept.before["events"])
    for name in VIEWS:
        assert rows_of(ledger, name) == kept.before[name], name


@pytest.mark.operate
def test_a_stopped_ledger_loses_its_old_rows_by_a_command(open_in, days, kept, wakeroll, tmp_path, monkeypatch):
    """The last rows of a deployment must not stay for ever because its `run` is stopped."""
    shutil.copytree(days, tmp_path / "warehouse")
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))
    code, out, _ = wakeroll("maintain", "--home", str(tmp_path), "--newest-only", "--json")

    assert code == 0, out
    ledger = open_in(tmp_path / "warehouse")
    assert 0 < len(rows_of(ledger, "events")) < len(kept.before["events"])
    for name in VIEWS:
        assert rows_of(ledger, name) == kept.before[name], name
    code, out, _ = wakeroll("check", "--no-docs", "--home", str(tmp_path))
    assert code == 0, out
    line = out.rpartition("elsewhere: ")[2].strip()
    assert wakeroll("check", "--no-docs", "--home", str(tmp_path), "--since", line)[0] == 0
    assert wakeroll("replay", "--home", str(tmp_path))[0] == 0
    code, out, _ = wakeroll("maintain", "--home", str(tmp_path))
    assert code == 0, out


def test_a_step_that_fails_is_a_warning(tmp_path, caplog):
    """The record of decisions goes on, whatever becomes of its files."""
    upkeep = Upkeep(Settings(home=str(tmp_path), upkeep_interval_ms=1_000))  # there are no tables

    def warned() -> bool:
        upkeep.step()
        return any(
            "upkeep failed to choose old rows, and will try again" in said.getMessage() for said in caplog.records
        )

    wait_until(warned, "a failed step is logged", patience_s=PATIENCE_WITH_SPARK_S)
