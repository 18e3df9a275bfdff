"""`wakeroll replay` on tables: what they say was decided is decided again - or it is said where not."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from msgspec import UNSET

from tests.support.control_log import START_MS
from tests.support.engines import ENGINES
from tests.support.ledgers import PARTITIONS, Story, a_day, write_ledger
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.decisions import Rejected
from wakeroll_model.partitioner import partition_of
from wakeroll_model.rows import DECISIONS, EVENTS
from wakeroll_model.shard_state import VERSION
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.ledger.table_creation import path_of
from wakeroll_pipeline.questions.replay_check import Checked
from wakeroll_pipeline.questions.replay_here import replay_here
from wakeroll_pipeline.questions.replay_in_spark import replay_in_spark

pytestmark = pytest.mark.spark

Command = Callable[..., tuple[int, str]]


@pytest.fixture(params=ENGINES)
def replay(wakeroll, request) -> Command:
    """The command, run in this process with each engine; it returns the exit code and what it says."""
    if request.param == "spark":  # the command asks the Spark that its process runs
        request.getfixturevalue("engine")

    def replay(warehouse: Path, *arguments: str) -> tuple[int, str]:
        engine = ("--engine", request.param)
        code, said, complaint = wakeroll("replay", "--home", str(warehouse.parent), *engine, *arguments)
        return code, said + complaint

    return replay


@pytest.fixture(scope="module")
def corrupted(day, tmp_path_factory) -> Path:
    """A copy of the day in which two decisions of `billing` say something else, and one of `audit` is not there."""
    warehouse = tmp_path_factory.mktemp("corrupted") / "warehouse"
    shutil.copytree(day, warehouse)
    billing, audit = (f"shard = 'groups-{home(group)}.1'" for group in ("billing", "audit"))
    table = DeltaTable(path_of(warehouse, DECISIONS).path)
    table.delete(f"{audit} and seq = 4")
    epoch_77 = """regexp_replace(json, '"epoch":[0-9]+', '"epoch":77')"""
    table.update({"json": epoch_77}, predicate=f"{billing} and seq in (3, 7)")
    return warehouse


@pytest.fixture
def replayed(open_in) -> Callable[[Path], list[Checked]]:
    """Replay all of a warehouse, in each engine; what Spark says must be what DuckDB says."""

    def replayed(warehouse: Path) -> list[Checked]:
        ledger = open_in(warehouse)
        if isinstance(ledger, DuckLedger):
            return replay_here(ledger, PARTITIONS, Period())
        done = replay_in_spark(ledger, PARTITIONS, Period())
        with duck_ledger(warehouse) as opened:
            assert done == replay_here(opened, PARTITIONS, Period())
        return done

    return replayed


def home(group_id: str) -> int:
    return partition_of(group_id.encode(), PARTITIONS)


def test_what_was_decided_is_decided_again(day, replay):
    story = a_day()

    code, said = replay(day)

    events = len(story.rows) - len(story.decisions)
    assert f"8 shards, {events} events, {len(story.decisions)} decisions compared: equal" in said
    assert code == 0


def test_a_group_of_a_period_begins_with_a_snapshot(day, replay):
    """In this process: a question about one group need not start a worker."""
    period = Period(START_MS + 35_000, START_MS + 95_000)
    expected = [
        one for one in a_day().decisions if period.has(one.at_ms) and one.shard == f"groups-{home('billing')}.1"
    ]
    since, until = (str(EpochMs(ms)) for ms in period)

    code, said = replay(day, "--group", "billing", "--from", since, "--to", until)

    assert expected
    assert re.search(rf"groups-{home('billing')}\.1 +│ the snapshot at \d+", said)
    assert f"{len(expected)} decisions compared: equal" in said
    assert code == 0


def test_a_decision_that_was_changed_is_found(corrupted, replay):
    """The record cannot be altered behind the back of its causes: both are shown side by side."""
    code, said = replay(corrupted)

    assert code == 1
    assert "decisions compared: 3 differ" in said
    assert re.search(rf"groups-{home('billing')}\.1 +│ 3 +│ epoch +│ 77 +│ 1 ", said)
    assert re.search(rf"groups-{home('audit')}\.1 +│ 4 +│ whole record +│ none +│ ", said)


def test_only_the_differences_of_a_group_are_its_own(corrupted, replay):
    code, said = replay(corrupted, "--group", "audit")

    assert code == 1
    assert "decisions compared: 1 differ" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--group", "biling"], "no group 'biling'; did you mean billing?"),
        (
            ["--from", "2020-01-01T00:00:00Z", "--to", "2021-01-01T00:00:00Z"],
            "the archived log has no record from 2020-",
        ),
        (["--from", "2021-01-01T00:00:00Z", "--to", "2020-01-01T00:00:00Z"], "--from must be before --to"),
        (["--from", "yesterday"], "'yesterday' is not a time; expected 20m ago, a time like 2026-07-01T03:00:00Z"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_sentence(day, replay, arguments, sentence):
    code, said = replay(day, *arguments)

    assert code == 2
    assert sentence in said


def test_without_tables_there_is_nothing_to_replay(tmp_path, replay):
    code, said = replay(tmp_path / "warehouse")

    assert code == 2
    assert "no tables in" in said


def test_each_era_is_decided_again_from_where_it_began(tmp_path, replayed):
    """What a later era began with is its first snapshot; snapshots of other machines are of no use."""
    story = Story()
    story.route("orders", 4)
    story.join("billing", "c1", "orders")
    story.pass_seconds(5)
    story.lose_state()
    story.join("billing", "c2", "orders")
    story.pass_seconds(5)
    story.snapshot()
    story.snapshots = [row if row[2] < 0 else (*row[:4], VERSION + 1, *row[5:]) for row in story.snapshots]
    story.join("billing", "c3", "orders")
    story.pass_seconds(5)
    write_ledger(tmp_path / "warehouse", story, batches=1)

    done = replayed(tmp_path / "warehouse")

    its = {one.shard: one for one in done if one.compared}
    assert set(its) == {f"groups-{home('billing')}.{era}" for era in (1, 2)}
    assert sum(one.compared for one in done) == len(story.decisions)
    assert {(one.differences, one.not_recorded, one.after) for one in its.values()} == {(0, 0, -1)}


@pytest.mark.parametrize(
    "kept", ["after", *(pytest.param(kept, marks=pytest.mark.operate) for kept in ("none", "before"))]
)
def test_a_replay_over_an_upgrade_compares_equal(tmp_path, replayed, kept):
    """From the start of the log, and from a snapshot before or after the record of the level, in both engines."""
    story = Story()
    story.route("orders", 4)
    story.join("billing", "c1", "orders")
    event = b'{"type":"unregister","group_id":"billing","client_id":"c","instance_id":"i"}'
    stray = (home("billing") + 1) % PARTITIONS
    for moment in ("before", "after"):
        story.pass_seconds(5)
        story.nonsense(event, stray, b"billing")
        if kept == moment:
            story.snapshot()
        story.pass_seconds(5)
        story.nonsense(event, stray, b"billing")
        if moment == "before":
            story.raise_level(2)
    write_ledger(tmp_path / "warehouse", story, batches=1)

    done = replayed(tmp_path / "warehouse")

    refusals = [one for one in story.decisions if isinstance(one, Rejected)]
    assert [one.partitions for one in refusals] == [UNSET, UNSET, PARTITIONS, PARTITIONS]
    assert sum(one.compared for one in done) == len(story.decisions)
    assert {(one.differences, one.not_recorded) for one in done} == {(0, 0)}


def test_behind_records_that_are_not_archived_a_replay_begins_with_the_next_snapshot(day, tmp_path, replay):
    """`record` was down for longer than Kafka keeps records: what they led to is on record, but not why."""
    warehouse, shard = tmp_path / "warehouse", f"groups-{home('billing')}"
    shutil.copytree(day, warehouse)
    story = a_day()
    [first, second] = [row[2] for row in story.snapshots if row[:2] == (f"wakeroll.{shard[:-2]}", home("billing"))]
    DeltaTable(path_of(warehouse, EVENTS).path).delete(
        f"topic = 'wakeroll.groups' and partition = {home('billing')} "
        f'and "offset" between {first + 3} and {first + 5}'
    )
    unknown = [one for one in story.decisions if one.shard == f"{shard}.1" and first + 3 <= one.cause.offset <= second]

    code, said = replay(warehouse)

    compared = len(story.decisions) - len(unknown)
    behind = [one for one in unknown if one.cause.offset > first + 5]
    assert 0 < len(behind) < len(unknown)
    assert code == 3
    assert f"{compared} decisions compared: equal" in said
    assert f"{shard}.1: {len(behind)} decisions cannot be compared: records before {first + 6} are not archived" in said
    assert f"{shard}.1: {len(unknown) - len(behind)} decisions cannot be compared: their records are not" in said


def test_several_processes_replay_what_one_would(day, monkeypatch):
    """A large ledger is replayed by one process per core, shard by shard."""
    with duck_ledger(day) as opened:
        alone = replay_here(opened, PARTITIONS, Period())
        monkeypatch.setattr("wakeroll_pipeline.questions.replay_here._WORTH_IT", 0)
        monkeypatch.setattr("os.cpu_count", lambda: 2)

        assert replay_here(opened, PARTITIONS, Period()) == alone
    assert sum(one.compared for one in alone) == len(a_day().decisions)


def test_a_script_gets_the_whole_result_as_json(corrupted, replay):
    code, said = replay(corrupted, "--group", "audit", "--json")

    answer = json.loads(said)
    [shard] = [one for one in answer["shards"] if one["differences"]]
    assert (code, answer["is_equal"], shard["shard"]) == (1, False, f"groups-{home('audit')}.1")
    assert shard["first"][0]["seq"] == 4
    assert shard["first"][0]["recorded"] is None
