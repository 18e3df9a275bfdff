"""Upkeep of the tables: many small files become few, what is old goes, and no answer changes."""

import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from tests.support.ledgers import PARTITIONS, highest_positions, three_days, write_ledger
from tests.support.spark_tables import append
from tests.support.waiting import PATIENCE_WITH_SPARK_S, wait_until
from wakeroll.epoch_ms import now_ms
from wakeroll_model.config import SNAPSHOT_SPAN
from wakeroll_model.rows import CHAIN, DECISIONS, DIVERGENCES, EVENTS, RECORDED, SNAPSHOTS, TABLES, Table
from wakeroll_model.shard_state import VERSION
from wakeroll_pipeline.ledger.archived_log import cut_logs
from wakeroll_pipeline.ledger.compaction import compact
from wakeroll_pipeline.ledger.expired_versions import delete_expired
from wakeroll_pipeline.ledger.maintenance import Upkeep
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.retention import DAY_MS, Past, forget, past_of
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.ledger.tables import ensure_tables, open_views
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows
from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark
from wakeroll_pipeline.settings import Settings

pytestmark = pytest.mark.spark

VIEWS = ("current_assignments", "current_offsets", "current_members", "groups")


def rows_of(spark: SparkSession, name: str) -> list[str]:
    return sorted(str(row) for row in spark.table(name).collect())


def live_files(spark: SparkSession, warehouse: Path, table: Table) -> int:
    return DeltaTable.forPath(spark, str(path_of(warehouse, table))).detail().collect()[0].numFiles


def turn_back_clocks(folder: Path) -> None:
    """Let the files here be two hours old; their order stays."""
    ago_s = time.time() - 7_200
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, times=(ago_s + number, ago_s + number))


class Kept(NamedTuple):
    """A ledger whose first day is old and gone, and what it said before."""

    warehouse: Path
    before: dict[str, list[str]]
    """Table or view -> its rows."""
    highest: dict[str, dict[tuple[object, ...], int]]
    """Table -> its streams' highest positions."""


@pytest.fixture(scope="module")
def kept(spark, days, cut) -> Kept:
    open_views(spark, days)
    before = {name: rows_of(spark, name) for name in (*TABLES, *VIEWS)}
    highest = {table.name: highest_positions(spark, days, table) for table in TABLES.values()}
    open_views(spark, cut)
    return Kept(cut, before, highest)


def test_what_is_old_goes_and_the_views_say_the_same(spark, kept):
    """Whoever joined before the oldest row is a member all the same, and owns what was given to it then."""
    for name in VIEWS:
        assert rows_of(spark, name) == kept.before[name] != [], name
    for table in RECORDED:
        assert set(rows_of(spark, table.name)) < set(kept.before[table.name]), table.name


@pytest.mark.usefixtures("kept")
def test_of_what_was_said_only_the_last_words_are_kept(spark):
    """The first commit of a queue was followed by a second one before the history begins."""
    offsets = spark.sql(
        "select queue_id, collect_set(committed_offset) as said from offsets where group_id = 'billing' group by 1"
    ).collect()

    assert {frozenset(row.said) for row in offsets} == {frozenset({20, 30})}
    handovers = spark.sql("select shard, seq from handovers").collect()
    assert sorted(handovers) == sorted(spark.sql("select shard, seq from assignments").collect())


@pytest.mark.usefixtures("kept")
def test_all_that_is_archived_is_decided_again_alike(spark):
    """The log begins behind a snapshot; the last words of before it are nothing to compare."""
    cut = cut_logs(SparkLedger(spark))

    done = replay_in_spark(SparkLedger(spark), PARTITIONS, Period())

    assert len(cut) == 2 * PARTITIONS
    assert {one.differences for one in done} == {0}
    assert {one.after for one in done} == {first - 1 for first in cut.values()}
    since_ms = spark.sql("select min(at_ms) as at_ms from events").collect()[0].at_ms
    recorded = spark.table("decisions").where(f"at_ms >= {since_ms}").count()
    assert sum(one.compared for one in done) == recorded > 0


@pytest.mark.operate
def test_what_began_with_nothing_that_is_left_is_named_and_the_rest_compared(spark, kept):
    """As for an era that began without a snapshot, and took its first one only later."""
    spark.sql(
        "create or replace temporary view snapshots as select topic, partition, offset, version, at_ms, body, "
        "row_hash, if(offset = min(offset) over (partition by topic, partition), 0, era) as era "
        f"from delta.`{path_of(kept.warehouse, SNAPSHOTS)}`"
    )
    try:
        done = replay_in_spark(SparkLedger(spark), PARTITIONS, Period())
    finally:
        open_views(spark, kept.warehouse)

    assert {one.differences for one in done} == {0}
    assert sum(one.events for one in done) > 0
    unknown = [one.why for one in done if one.unknown]
    assert unknown != []
    assert all("are not archived" in why for why in unknown)


@pytest.mark.operate
@pytest.mark.usefixtures("kept")
def test_what_is_left_keeps_the_rules_of_a_history(spark):
    """Between the last words that are kept there are gaps, which are nobody's fault."""
    with broken_rows(spark) as broken:
        assert broken.collect() == []


def test_a_stream_keeps_its_highest_row(spark, kept):
    """It says how far the table has come; without it a repeated batch would be written twice."""
    for table in TABLES.values():
        assert highest_positions(spark, kept.warehouse, table) == kept.highest[table.name]


def test_nothing_goes_without_a_snapshot_to_begin_with(spark, kept, monkeypatch):
    """A log that begins with nothing in the middle of a story would be decided otherwise."""
    monkeypatch.setattr("wakeroll_pipeline.ledger.retention.READABLE", range(VERSION + 1, VERSION + 2))
    before = {table.name: rows_of(spark, table.name) for table in RECORDED}

    past = past_of(kept.warehouse, three_days().now_ms + 100 * DAY_MS, DAY_MS, DAY_MS)
    for table in RECORDED:
        forget(kept.warehouse, table, past)
    open_views(spark, kept.warehouse)

    assert past.begins == {}
    assert {table.name: rows_of(spark, table.name) for table in RECORDED} == before


def test_a_group_that_was_forgotten_and_a_client_that_left_say_no_last_words(spark, tmp_path):
    """Else names that are made up again at each start would stay for ever."""
    ensure_tables(spark, tmp_path)
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
        ("groups-0.1", seq, kind, group, client, seq, ("wakeroll.groups", 0, seq), seq, 0, json)
        for seq, (kind, group, client, json) in enumerate(said, 1)
    ]
    append(spark.createDataFrame(rows, schema_of(DECISIONS.row)), path_of(tmp_path, DECISIONS))

    forget(tmp_path, DECISIONS, Past({("wakeroll.groups", 0): 100}, DAY_MS, DAY_MS))

    left = spark.read.format("delta").load(str(path_of(tmp_path, DECISIONS))).select("seq").collect()
    assert sorted(row.seq for row in left) == [2, 6, 8, 9]


def test_what_was_decided_last_is_kept_whatever_its_log_time(spark, tmp_path):
    """A leader's clock steps back, and era 10 is newer than era 9 at the same log time."""
    ensure_tables(spark, tmp_path)
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
        (shard, seq, kind, "here", client, at_ms, ("wakeroll.groups", 0, number), at_ms, 0, json)
        for number, (shard, seq, kind, client, at_ms, json) in enumerate(said)
    ]
    append(spark.createDataFrame(rows, schema_of(DECISIONS.row)), path_of(tmp_path, DECISIONS))

    forget(tmp_path, DECISIONS, Past({("wakeroll.groups", 0): 100}, DAY_MS, DAY_MS))

    left = spark.read.format("delta").load(str(path_of(tmp_path, DECISIONS))).select("shard", "seq").collect()
    assert sorted(tuple(row) for row in left) == [
        *(("groups-0.10", seq) for seq in (2, 3, 6, 7, 8, 9)),
        ("groups-0.9", 8),
    ]


def test_of_older_snapshots_the_last_of_each_day_is_kept(spark, tmp_path):
    """Eight shards every ten minutes are a thousand states a day."""
    ensure_tables(spark, tmp_path)
    hour_ms = 3_600_000
    rows = [
        ("wakeroll.groups", 0, number, 1, VERSION, number * 6 * hour_ms, bytearray(b"state"), None)
        for number in range(1, 20)
    ]
    rows += [
        ("wakeroll.groups", 0, number, 2, VERSION, 60 * hour_ms, bytearray(b"state"), None) for number in (8, 12, 14)
    ]
    append(spark.createDataFrame(rows, schema_of(SNAPSHOTS.row)), path_of(tmp_path, SNAPSHOTS))

    forget(tmp_path, SNAPSHOTS, Past({("wakeroll.groups", 0): 7}, DAY_MS, DAY_MS, keep_snapshots=1))

    left = spark.read.format("delta").load(str(path_of(tmp_path, SNAPSHOTS))).select("era", "offset").collect()
    assert sorted(row.offset for row in left if row.era == 1) == [7, 11, 15, 16, 17, 18, 19]
    assert sorted(row.offset for row in left if row.era == 2) == [8, 14], "what the era began with, too"


def test_older_snapshots_of_a_busy_shard_are_a_bounded_number_of_records_apart(spark, tmp_path):
    """The last one of a day is millions of records away from most moments of that day."""
    ensure_tables(spark, tmp_path)
    step = SNAPSHOT_SPAN // 5
    taken = [(number * step, number * 1_000) for number in range(1, 18)] + [(100 * step, 3 * DAY_MS)]
    rows = [("wakeroll.groups", 0, offset, 1, VERSION, at_ms, bytearray(b"state"), None) for offset, at_ms in taken]
    append(spark.createDataFrame(rows, schema_of(SNAPSHOTS.row)), path_of(tmp_path, SNAPSHOTS))

    forget(tmp_path, SNAPSHOTS, Past({}, 0, 0, keep_snapshots=1))

    left = spark.read.format("delta").load(str(path_of(tmp_path, SNAPSHOTS))).select("offset").collect()
    assert sorted(row.offset // step for row in left) == [4, 9, 14, 17, 100]


def test_the_newest_snapshots_of_a_shard_are_kept_however_old_they_are(spark, tmp_path):
    """If the newest one is damaged, the next start needs the one before it."""
    ensure_tables(spark, tmp_path)
    rows = [
        ("wakeroll.groups", 0, number, 1, VERSION, number * 60_000, bytearray(b"state"), None) for number in range(9)
    ]
    append(spark.createDataFrame(rows, schema_of(SNAPSHOTS.row)), path_of(tmp_path, SNAPSHOTS))

    forget(tmp_path, SNAPSHOTS, Past({}, 0, 0, keep_snapshots_ms=60_000, keep_snapshots=4))

    left = spark.read.format("delta").load(str(path_of(tmp_path, SNAPSHOTS))).select("offset").collect()
    assert sorted(row.offset for row in left) == [5, 6, 7, 8]


@pytest.mark.operate
def test_no_record_is_deleted_that_only_a_damaged_snapshot_makes_superfluous(spark, tmp_path):
    """Otherwise the state at the beginning of the archived log could never be had again."""
    story = three_days()
    write_ledger(spark, tmp_path / "sound", story)
    first = min(row[2] for row in story.snapshots if row[:2] == ("wakeroll.groups", 0))
    story.snapshots[:] = [
        (*row[:6], row[6][:-1], row[7]) if row[:3] == ("wakeroll.groups", 0, first) else row for row in story.snapshots
    ]
    write_ledger(spark, tmp_path / "damaged", story)

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
    assert live_files(spark, tmp_path, EVENTS) == 8

    compact(path, EVENTS)  # ... and the process dies here
    assert live_files(spark, tmp_path, EVENTS) == 1
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
def test_a_round_of_upkeep_looks_after_every_table(spark, days, kept, tmp_path):
    """One step at a time; between two of them rows may be appended."""
    settings = Settings(home=str(tmp_path), upkeep_interval_ms=1_000)
    shutil.copytree(days, settings.warehouse)
    upkeep = Upkeep(settings)

    def few() -> bool:
        upkeep.step()
        # Nothing diverges in the story, and its lines are in the commits.
        empty = (CHAIN, DIVERGENCES)
        return all(live_files(spark, settings.warehouse, table) == (table not in empty) for table in TABLES.values())

    assert live_files(spark, settings.warehouse, EVENTS) == 2
    wait_until(few, "each table has one file", patience_s=PATIENCE_WITH_SPARK_S)
    open_views(spark, settings.warehouse)

    facts = spark.read.format("delta").load(str(settings.warehouse / "daily_facts")).collect()
    assert {(str(row.day), row.group_id) for row in facts} == {("2023-11-14", "audit"), ("2023-11-14", "billing")}
    # The story is long past; but what is behind its last snapshot but one stays.
    assert 0 < spark.table("events").count() < len(kept.before["events"])
    for name in VIEWS:
        assert rows_of(spark, name) == kept.before[name], name


@pytest.mark.operate
def test_a_stopped_ledger_loses_its_old_rows_by_a_command(spark, days, kept, wakeroll, tmp_path, monkeypatch):
    """The last rows of a deployment must not stay for ever because its `run` is stopped."""
    shutil.copytree(days, tmp_path / "warehouse")
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))
    code, out, _ = wakeroll("maintain", "--home", str(tmp_path), "--newest-only", "--json")

    assert code == 0, out
    open_views(spark, tmp_path / "warehouse")
    assert 0 < spark.table("events").count() < len(kept.before["events"])
    for name in VIEWS:
        assert rows_of(spark, name) == kept.before[name], name
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
