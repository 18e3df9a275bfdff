"""The number of files that a question opens, on a ledger that gets older."""

from pathlib import Path

import pytest

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.ledgers import DAY_MS, PARTITIONS, START_MS, Story
from tests.support.opened_files import opened_files
from tests.support.samples import sample
from wakeroll.epoch_ms import EpochMs
from wakeroll_model.rows import DECISIONS, EVENTS
from wakeroll_pipeline.cli import open_ledger
from wakeroll_pipeline.ledger import delta_files
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.period import Period
from wakeroll_pipeline.questions.replay_here import replay_here

YOUNG, OLD = 5, 9
"""Ages of two ledgers (days)."""
FILES_PER_DAY = 4
"""Files of each day in each of three tables."""


def written(folder: Path, days: int) -> Path:
    """Write a ledger in which two members join and leave each day; all snapshots are in one file."""
    warehouse, story = folder / "warehouse", Story()
    story.route("orders", 4, ends=100)
    story.join("audit", "a1", "orders")
    records = 0

    def write(snapshots: list[tuple[object, ...]]) -> None:
        nonlocal records
        part = Story()
        part.rows, part.snapshots, records = story.rows[records:], snapshots, len(story.rows)
        write_tables(warehouse, part)
        write_assignments(warehouse, part)

    for day in range(days):
        story.now_ms = START_MS + day * DAY_MS
        for number in range(FILES_PER_DAY):
            if number < 2:
                story.join("billing", f"c{number}", "orders")
            else:
                story.leave("billing", f"c{number - 2}")
            story.pass_seconds(12)
            story.commit("billing", 10 * day + number + 1)
            story.pass_seconds(1)
            if number == 1:
                story.snapshot()
            is_end = day == days - 1 and number == FILES_PER_DAY - 1
            write(story.snapshots if is_end else [])
    return warehouse


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {days: written(tmp_path_factory.mktemp(f"days-{days}"), days) for days in (YOUNG, OLD)}


@pytest.fixture(autouse=True)
def _files_of_no_hour_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test has just written all files, and those of the last hour are opened in any case."""
    monkeypatch.setattr(delta_files, "_NEWEST_MS", -1)
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))


def asked(days: int) -> Period:
    """Return a period of the last day but one, after its first rebalance."""
    begin_ms = START_MS + (days - 2) * DAY_MS
    return Period(begin_ms + 20_000, begin_ms + 40_000)


def replay(days: int, *options: str) -> tuple[str, ...]:
    since, until = (str(EpochMs(ms)) for ms in asked(days))
    return "replay", "--from", since, "--to", until, *options


QUESTIONS = {
    "groups": lambda _: ("groups", "--json"),
    "describe": lambda _: ("describe", "billing", "--json"),
    "lag": lambda _: ("lag", "--json"),
    "lag of a group": lambda _: ("lag", "billing", "--json"),
    "state": lambda _: ("state", "--json"),
    "explain": lambda _: ("explain", "--group", "billing", "--queue", "orders-0"),
    "replay": replay,
    "replay, for a program": lambda days: replay(days, "--json"),
    "replay of a group": lambda days: replay(days, "--group", "billing"),
    "sql of a table": lambda days: ("sql", f"select count(*) from decisions where {asked(days).condition}"),
    "sql of views": lambda days: (
        "sql",
        f"with recent as (select * from rebalances where {asked(days).condition}) "
        "select trigger, count(how) from recent "
        f"join (select * from handovers where {asked(days).condition}) using (group_id, epoch) group by all",
    ),
}
"""Question -> its command for a ledger of so many days."""


@pytest.mark.parametrize("question", sample(QUESTIONS, quick=5))
def test_a_question_opens_as_many_files_of_an_old_ledger_as_of_a_young_one(ledgers, wakeroll, question):
    """Otherwise it takes longer with each day that is kept."""
    opened = {}
    for days, warehouse in ledgers.items():
        with opened_files(warehouse) as files:
            code, said, complaint = wakeroll(*QUESTIONS[question](days), "--home", str(warehouse.parent))
        assert (code, complaint) == (0, ""), said
        opened[days] = len(files)

    assert 0 < opened[YOUNG] == opened[OLD]


@pytest.mark.parametrize(
    "query",
    [
        "select count(*), max(cause.offset) from decisions where {}",
        "select * from rebalances where {} or group_id = 'audit' order by all",
        "select count(*) from decisions where {} union all select count(*) from decisions where kind = 'handover'",
        "select count(*) from events as later join events as earlier using (topic, partition, at_ms) where later.{}",
        "select at_ms, (select max(seq) from decisions as all_of_them) from decisions where {} order by all",
        "select * from decisions where {} and json like '%(at_ms < 5)%' order by all",
        "select * from assignments left join decisions using (shard, seq) where from_ms < 1700001000000 order by all",
        "select * from decisions where at_ms > 1700001000000 and seq between 30 and 40 and partition = 1 order by all",
        "select * from (select *, max(at_ms) over () as last_ms from decisions) where {} order by all",
        "select * from decisions where at_ms in (1700000000000, 1700086400000) and false",
    ],
)
def test_an_answer_from_some_files_is_that_from_all(ledgers, query):
    """The conditions of a part of a query do not hold for its other parts."""
    warehouse, query = ledgers[YOUNG], query.format(asked(YOUNG).condition)
    with duck_ledger(warehouse) as ledger:
        expected = ledger.rows(query)
    with duck_ledger(warehouse) as ledger:
        ledger.narrow(query)

        assert ledger.rows(query) == expected


def test_a_query_without_a_time_opens_all_files_of_its_table(ledgers, wakeroll):
    for days, warehouse in ledgers.items():
        with opened_files(warehouse) as files:
            wakeroll("sql", "select max(cause.offset) from decisions", "--home", str(warehouse.parent))

        assert len(files) == FILES_PER_DAY * days


@pytest.mark.parametrize(
    ("query", "is_small"),
    [
        ("select count(*) from decisions where {}", True),
        ("select * from rebalances where {}", True),
        ("describe decisions", True),
        ("show tables", True),
        ("select 1", True),
        ("select count(*) from decisions", False),
        ("select count(*) from decisions where seq % 2 = 0", False),
        ("select cast('{{}}' as map<string, string>)", False),  # only Spark understands it
    ],
)
def test_a_query_that_needs_little_of_a_large_ledger_needs_no_spark(ledgers, wakeroll, monkeypatch, query, is_small):
    """The size of the files that it needs counts, and not that of a ledger of years."""
    query = query.format(asked(OLD).condition)
    with duck_ledger(ledgers[OLD]) as ledger:
        largest = ledger.bytes_for(f"select count(*) from decisions where {asked(OLD).condition}")
    monkeypatch.setattr(open_ledger, "LARGEST_BYTES", largest)
    monkeypatch.setattr(open_ledger, "find_spec", lambda _name: None)

    code, _, complaint = wakeroll("sql", query, "--home", str(ledgers[OLD].parent))

    assert (
        (code, complaint) == (0, "") if is_small else "and Spark, which would read them, is not installed" in complaint
    )


PERIODS = [
    Period(START_MS + 5_000, START_MS + 15_000),
    Period(None, START_MS + DAY_MS + 20_000),
    Period(START_MS + 2 * DAY_MS + 30_000, START_MS + 4 * DAY_MS),
    Period(START_MS + 4 * DAY_MS, None),
    Period(START_MS + 4 * DAY_MS + 25_000, None),
]


@pytest.mark.parametrize("group_id", [None, "billing", pytest.param("audit", marks=pytest.mark.operate)])
@pytest.mark.parametrize("period", PERIODS, ids=str)
def test_a_replay_of_some_files_is_that_of_all(ledgers, monkeypatch, period, group_id):
    with duck_ledger(ledgers[YOUNG]) as ledger:
        found = replay_here(ledger, PARTITIONS, period, group_id)
        monkeypatch.setattr("wakeroll_pipeline.questions.replay_here._files_of", lambda _ledger, _period: ())

        assert found == replay_here(ledger, PARTITIONS, period, group_id)
        assert sum(one.compared for one in found) or group_id == "audit"


@pytest.mark.parametrize(
    "edit",
    [
        (DECISIONS, "kind = 'handover'", {"json": "'{}'"}),
        (EVENTS, "type = 'heartbeat'", {"value": "'{}'"}),
    ],
    ids=["decisions", "records"],
)
def test_a_difference_is_told_as_all_files_show_it(tmp_path, monkeypatch, edit):
    """What a part of the files shows may have its reason in the others."""
    table, rows, new = edit
    warehouse = written(tmp_path, 3)
    period = Period(START_MS + DAY_MS + 20_000, START_MS + DAY_MS + 60_000)
    open_delta(warehouse / table.name).update(predicate=f"{rows} and {period.condition}", updates=new)
    with duck_ledger(warehouse) as ledger:
        found = replay_here(ledger, PARTITIONS, period)
        monkeypatch.setattr("wakeroll_pipeline.questions.replay_here._files_of", lambda _ledger, _period: ())

        assert found == replay_here(ledger, PARTITIONS, period)
        assert sum(one.differences for one in found) > 0
