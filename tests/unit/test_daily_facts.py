"""Daily facts: what each group did on a day, written once, and before the rows of the day are deleted."""

import datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.support.chained_ledgers import append, create_tables
from tests.support.ledgers import DAY_MS, PARTITIONS, START_MS, Story, a_day, told_by_hand
from tests.support.opened_files import opened_files
from wakeroll.epoch_ms import now_ms
from wakeroll_model.decisions import Handover, Membership
from wakeroll_model.events import Queue
from wakeroll_pipeline.jobs.maintain import maintain
from wakeroll_pipeline.jobs.repair import repair
from wakeroll_pipeline.ledger import delta_files
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.daily_facts import FACTS, differences, facts_of, missing_days, store, write_day
from wakeroll_pipeline.ledger.delta_files import open_delta
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.openings import forget_opening, opening_of, read_opening, write_opening
from wakeroll_pipeline.ledger.stored_marts import path_of_facts
from wakeroll_pipeline.questions.quality.facts_check import RULE, check_facts
from wakeroll_pipeline.questions.quality.rule import RuleResult
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.storage.place import Place

HOUR_MS = 3_600_000
FIRST, SECOND = datetime.date(2023, 11, 14), datetime.date(2023, 11, 15)


def next_day(story: Story) -> None:
    story.now_ms += -story.now_ms % DAY_MS


def two_hours_into_next_day(story: Story) -> None:
    """In every stream: then the day before is complete."""
    next_day(story)
    story.now_ms += 2 * HOUR_MS
    story.pass_seconds(20)


def days_of_two_groups() -> Story:
    """A busy day, a calm one, and more than an hour of a third one in every stream."""
    story = a_day()
    next_day(story)
    story.pass_seconds(20)
    two_hours_into_next_day(story)
    return story


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    warehouse = tmp_path_factory.mktemp("days") / "warehouse"
    create_tables(warehouse)
    append(warehouse, days_of_two_groups(), Chains(warehouse))
    return warehouse


def facts_on(warehouse: Path, day: datetime.date) -> dict[str, dict[str, object]]:
    """Return group -> its facts on a day, computed now."""
    with duck_ledger(warehouse) as ledger:
        rows = facts_of(ledger, day).read_all()
    columns = {name: rows.column(name).to_pylist() for name in FACTS}
    return {group: {name: its[row] for name, its in columns.items()} for row, group in enumerate(columns["group_id"])}


def stored(warehouse: Path) -> list[dict[str, object]]:
    return DeltaTable(warehouse / "daily_facts").to_pyarrow_table().sort_by([("day", "ascending")]).to_pylist()


def test_the_facts_of_a_busy_day_are_those_that_its_story_tells(warehouse):
    """A member is killed: four queues are not read for 46 s, and read to 1,000 at most, committed to 200."""
    billing = facts_on(warehouse, FIRST)["billing"]

    assert billing == {
        "day": FIRST,
        "group_id": "billing",
        "rebalances": 7,
        "rebalances_by_trigger": '{"config":1,"expire":1,"join":3,"leave":1,"route":1}',
        "handed_over": 26,
        "handed_over_abruptly": 4,
        "total_pause_ms": 184_000,
        "longest_pause_ms": 46_000,
        "repeats_possible": 3_200,
        "lag_at_end_messages": 8 * (2_000 - 300),
        "lag_max_messages": 8 * (2_000 - 300),
        "unowned_queue_ms": 0,
        "members_min": 1,
        "members_max": 3,
        "members_at_end": 1,
        "owners": 3,
        "rejected_events": 0,
        "answered_pulls": 0,
        "held_ms": 0,
        "is_forgotten": False,
        "is_whole": False,  # the log begins within this day
    }


def test_a_calm_day_has_its_owners_and_members_from_the_days_before(warehouse):
    """Nothing was decided on it, but the group was there and read its queues."""
    write_day(warehouse, FIRST, HOUR_MS, now_ms())
    calm = facts_on(warehouse, SECOND)

    assert sorted(calm) == ["audit", "billing"]
    assert [calm["billing"][name] for name in ("rebalances", "owners", "members_min", "members_max", "is_whole")] == [
        0,
        1,
        1,
        1,
        True,
    ]
    assert calm["audit"]["owners"] == 2


def test_a_forgotten_group_has_no_time_without_an_owner_and_is_not_on_later_days(tmp_path):
    """Otherwise a group that nobody uses any more would be without an owner for ever."""
    queue = Queue("orders", "b", 0)
    story = told_by_hand(
        (1, Handover(group_id="old", queue=queue, from_=None, to="a", epoch=1, how="first")),
        (1, Handover(group_id="old", queue=queue, from_="a", to=None, epoch=2, how="expired")),
        (1, Membership(group_id="old", client_id="", change="forgotten", epoch=2)),
        (1, Handover(group_id="left", queue=queue, from_=None, to="a", epoch=1, how="first")),
        (1, Handover(group_id="left", queue=queue, from_="a", to=None, epoch=2, how="released")),
    )
    create_tables(tmp_path)
    append(tmp_path, story, Chains(tmp_path))

    facts = facts_on(tmp_path, FIRST)
    assert (facts["old"]["unowned_queue_ms"], facts["old"]["is_forgotten"]) == (1_000, True)
    end_ms = -story.decisions[-1].at_ms % DAY_MS
    assert (facts["left"]["unowned_queue_ms"], facts["left"]["is_forgotten"]) == (end_ms, False)
    later = facts_on(tmp_path, SECOND)
    assert list(later) == ["left"]
    assert later["left"]["unowned_queue_ms"] == DAY_MS


def a_week() -> Story:
    """A group that is read on all days, one that is forgotten and comes back with fewer queues, and killed members."""
    story = Story()
    story.route("orders", 4, ends=100)
    story.join("billing", "c1", "orders")
    story.pass_seconds(12)
    story.join("billing", "c2", "orders")
    story.pass_seconds(12)
    story.commit("billing", 10)
    for day in range(6):
        next_day(story)
        story.now_ms += HOUR_MS // 2  # a day's rows of the margin before it are none of the day
        story.pass_seconds(10)
        if day % 2 == 0:
            story.join("audit", f"a{day}", "orders")
        story.commit("billing", 20 + 10 * day)
        story.pass_seconds(10)
        story.route("orders", 4, ends=200 + 100 * day)
        if day == 2:
            story.crash("billing", "c2")
        if day % 2:
            story.leave("audit", f"a{day - 1}")
        story.pass_seconds(60)
    two_hours_into_next_day(story)
    return story


@pytest.mark.operate
def test_a_day_has_the_same_facts_from_all_rows_before_it_and_from_the_opening_of_the_day_before(tmp_path):
    """The latter is what upkeep does: otherwise each day would read all history."""
    warehouses = [tmp_path / "one after the other", tmp_path / "from all rows"]
    for warehouse in warehouses:
        create_tables(warehouse)
        append(warehouse, a_week(), Chains(warehouse))
        days = missing_days(warehouse)
        assert len(days) == 7
        for day in days:
            if warehouse == warehouses[1]:
                forget_opening(path_of_facts(warehouse))
            write_day(warehouse, day, HOUR_MS, now_ms())
    opening = read_opening(path_of_facts(warehouses[0]))
    assert opening is not None
    assert opening.day == days[-1]

    assert stored(warehouses[0]) == stored(warehouses[1])
    assert sum(row["handed_over_abruptly"] for row in stored(warehouses[0])) > 0
    assert check_facts(warehouses[0]) == RuleResult(RULE)


def test_the_opening_of_a_day_reads_no_file_of_the_days_before_the_known_one(tmp_path, monkeypatch):
    monkeypatch.setattr(delta_files, "_NEWEST_MS", -1)
    create_tables(tmp_path)
    append(tmp_path, a_week(), Chains(tmp_path), batches=40)
    *_, before, last, _ = missing_days(tmp_path)
    opened, rows = {}, []
    with duck_ledger(tmp_path) as ledger:
        known = opening_of(ledger, before)
        for name, begin in (("all rows", None), ("a day", known)):
            with opened_files(tmp_path) as opened[name]:
                found = opening_of(ledger, last, begin)
            rows.append(sorted(map(repr, zip(*(column.to_pylist() for column in found.rows.columns), strict=True))))

    assert rows[0] == rows[1]
    assert len(rows[0]) > 8
    assert len(opened["a day"]) < len(opened["all rows"]) / 3


def test_a_group_that_was_forgotten_comes_back_without_its_queues_of_then(tmp_path):
    """Otherwise a queue that it does not read any more would be without an owner for ever."""

    def owned(number: int, epoch: int, from_: str | None, to: str | None, how: str) -> Handover:
        return Handover(
            group_id="old",
            queue=Queue("orders", "b", number),
            from_=from_,
            to=to,
            epoch=epoch,
            how=how,  # type: ignore[arg-type]
        )

    story = told_by_hand(
        (1, owned(0, 1, None, "a", "first")),
        (1, owned(0, 2, "a", None, "expired")),
        (1, Membership(group_id="old", client_id="", change="forgotten", epoch=2)),
        (1, Membership(group_id="old", client_id="b", change="joined", epoch=3)),
        (1, owned(1, 3, None, "b", "first")),
    )
    create_tables(tmp_path)
    append(tmp_path, story, Chains(tmp_path))

    assert facts_on(tmp_path, SECOND)["old"]["unowned_queue_ms"] == 0
    for day in (FIRST, SECOND):
        write_day(tmp_path, day, HOUR_MS, now_ms())
    assert [row["unowned_queue_ms"] for row in stored(tmp_path)][1] == 0


def test_upkeep_writes_each_complete_day_once_without_spark(tmp_path):
    """A day that streams have not left behind may still get rows."""
    settings = Settings(home=str(tmp_path), partitions=PARTITIONS, **dict.fromkeys(KEEPS, 10**13))
    create_tables(settings.warehouse.path)
    append(settings.warehouse.path, days_of_two_groups(), Chains(settings.warehouse))
    assert missing_days(settings.warehouse) == [FIRST, SECOND]

    for _ in range(2):
        report = maintain(settings, pytest.fail)  # type: ignore[arg-type]
        assert report.failures == []

    assert sorted((row["day"], row["group_id"]) for row in stored(settings.warehouse.path)) == [
        (day, group) for day in (FIRST, SECOND) for group in ("audit", "billing")
    ]
    assert missing_days(settings.warehouse) == []
    assert DeltaTable(settings.warehouse.path / "daily_facts").version() == 1


KEEPS = ("keep_events_ms", "keep_decisions_ms", "keep_snapshots_ms")


def test_no_row_is_deleted_while_the_facts_of_its_day_cannot_be_written(tmp_path):
    """The rows are all that is known of these days. A session would be started for the deletion."""
    settings = Settings(home=str(tmp_path), partitions=PARTITIONS)  # by which all rows are old
    create_tables(settings.warehouse.path)
    append(settings.warehouse.path, days_of_two_groups(), Chains(settings.warehouse))
    write_day(settings.warehouse, FIRST, HOUR_MS, now_ms())
    for file in (settings.warehouse.path / "daily_facts").glob("*.parquet"):
        file.unlink()

    report = maintain(settings, pytest.fail)  # type: ignore[arg-type]

    assert [failure.step for failure in report.failures] == ["write the daily facts"]


@pytest.mark.operate
def test_of_two_processes_that_write_a_day_at_once_one_does_it(tmp_path):
    """Both have computed the facts before one of them stores them; neither the first day nor a later one is doubled."""
    create_tables(tmp_path)
    append(tmp_path, days_of_two_groups(), Chains(tmp_path))
    path = path_of_facts(tmp_path)
    with duck_ledger(tmp_path) as ledger:
        assert [store(path, None, FIRST, facts_of(ledger, FIRST)) for _ in range(2)] == [True, False]
        tables = [open_delta(path) for _ in range(2)]
        done = [store(path, table, SECOND, facts_of(ledger, SECOND)) for table in tables]

    assert done[0]
    days = [(row["day"], row["group_id"]) for row in stored(tmp_path)]
    assert sorted(days) == [(day, group) for day in (FIRST, SECOND) for group in ("audit", "billing")]


def test_the_documented_questions_about_years_are_answered(warehouse):
    """As docs/sql.md shows them."""
    for day in (FIRST, SECOND):
        write_day(warehouse, day, HOUR_MS, now_ms())
    page = (Path(__file__).parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
    part = page.partition("## Years: the daily facts")[2].partition("\n## ")[0]
    monthly, weekly = (block.partition("```")[0] for block in part.split("```sql\n")[1:])

    with duck_ledger(warehouse) as ledger:
        ledger.open_marts()
        [audit, billing] = ledger.rows(monthly)
        assert [row.rebalances_per_day for row in ledger.rows(weekly) if row.group_id == "billing"] == [7, 0]

    assert (audit.days, billing.days, billing.days_not_whole, billing.rebalances) == (2, 2, 1, 7)
    assert (billing.pause_s, billing.longest_pause_s, billing.repeats_at_most) == (184, 46, 3_200)


def a_kill_on_the_second_day() -> Story:
    """A member joins and commits on the first day only, and is killed on the second one, of which all is recorded."""
    story = Story()
    story.route("orders", 4, ends=100)
    for client_id in ("c1", "c2"):
        story.join("billing", client_id, "orders")
        story.pass_seconds(20)
    story.commit("billing", 10)
    two_hours_into_next_day(story)
    story.route("orders", 4, ends=200)
    story.crash("billing", "c2")
    story.pass_seconds(30)
    story.route("orders", 4, ends=300)
    story.pass_seconds(30)
    two_hours_into_next_day(story)
    return story


def test_what_may_be_repeated_is_the_same_bound_as_in_the_mart(tmp_path):
    """Its commit and the heartbeats that were demanded of it are a day older: the facts find both."""
    create_tables(tmp_path)
    append(tmp_path, a_kill_on_the_second_day(), Chains(tmp_path))

    billing = facts_on(tmp_path, SECOND)["billing"]
    with duck_ledger(tmp_path) as ledger:
        rows = ledger.rows("select topic, queue_id, client_id, repeats_possible from repeats order by queue_id")

    assert [(row.client_id, row.repeats_possible) for row in rows] == [("c2", 190)] * 2
    assert (billing["handed_over_abruptly"], billing["repeats_possible"]) == (2, 380)


def edited(warehouse: Path, day: datetime.date, edit: str) -> None:
    """Store the facts of a day with an edit, as somebody could who writes the table."""
    path = path_of_facts(warehouse)
    table = open_delta(path)
    table.update(
        updates=dict([edit.split(" = ")]), predicate=f"day = DATE '{day.isoformat()}' and group_id = 'billing'"
    )


def test_facts_that_the_rows_do_not_give_are_found_and_repaired(tmp_path):
    """Somebody has edited a fact of one day and deleted those of a group on another; their rows are still there."""
    settings = Settings(home=str(tmp_path), partitions=PARTITIONS, **dict.fromkeys(KEEPS, 10**13))
    warehouse = settings.warehouse.path
    create_tables(warehouse)
    append(warehouse, days_of_two_groups(), Chains(warehouse))
    assert check_facts(warehouse) is None
    for day in (FIRST, SECOND):
        write_day(warehouse, day, HOUR_MS, now_ms())
    assert check_facts(warehouse) == RuleResult(RULE)

    edited(warehouse, FIRST, "rebalances = 0")
    open_delta(path_of_facts(warehouse)).delete("day = DATE '2023-11-15' and group_id = 'audit'")
    found = check_facts(warehouse)

    assert found is not None
    assert found.broken == 2
    assert found.rows == (
        {"at": "2023-11-14, billing, rebalances", "found": "0", "expected": "7"},
        {"at": "2023-11-15, audit", "found": "no row", "expected": "a row"},
    )
    plans = []
    declined = repair(settings, lambda plan: bool(plans.append(plan)))
    assert [one.text for one in declined.days] == [
        "daily_facts of 2023-11-14: 1 values differ, computed again from the rows of the day",
        "daily_facts of 2023-11-15: 1 values differ, computed again from the rows of the day",
    ]
    assert repair(settings, lambda plan: plan == plans[0]).days == declined.days
    assert check_facts(warehouse) == RuleResult(RULE)
    assert repair(settings, pytest.fail).days == []  # type: ignore[arg-type]


@pytest.mark.operate
def test_what_an_edited_opening_has_spoilt_is_found_and_repaired(tmp_path):
    """The file is no proof: `check` and `repair` begin with the rows."""
    settings = Settings(home=str(tmp_path), partitions=PARTITIONS, **dict.fromkeys(KEEPS, 10**13))
    warehouse, folder = settings.warehouse.path, path_of_facts(settings.warehouse)
    create_tables(warehouse)
    append(warehouse, days_of_two_groups(), Chains(warehouse))
    write_day(warehouse, FIRST, HOUR_MS, now_ms())
    with duck_ledger(warehouse) as ledger:
        true = opening_of(ledger, SECOND)
    write_opening(folder, true._replace(rows=true.rows.slice(0, 1)))
    write_day(warehouse, SECOND, HOUR_MS, now_ms())

    found = check_facts(warehouse)
    assert found is not None
    assert found.broken > 0
    assert [one.day for one in repair(settings, lambda _: True).days] == [SECOND]
    assert check_facts(warehouse) == RuleResult(RULE)


def test_a_damaged_opening_is_computed_again(tmp_path):
    create_tables(tmp_path)
    append(tmp_path, days_of_two_groups(), Chains(tmp_path))
    write_day(tmp_path, FIRST, HOUR_MS, now_ms())
    (tmp_path / "daily_facts" / "_opening-1.parquet").write_bytes(b"PAR1")
    write_day(tmp_path, SECOND, HOUR_MS, now_ms())

    assert check_facts(tmp_path) == RuleResult(RULE)
    assert read_opening(path_of_facts(tmp_path)) is not None


@pytest.mark.operate
def test_a_day_of_which_rows_were_deleted_is_not_judged(tmp_path):
    """Its facts are what is left of them; those of the next day are still compared."""
    story = a_kill_on_the_second_day()
    create_tables(tmp_path)
    append(tmp_path, story, Chains(tmp_path))
    for day in (FIRST, SECOND):
        write_day(tmp_path, day, HOUR_MS, now_ms())
    open_delta(Place.of(tmp_path) / "events").delete(f"at_ms < {START_MS + 30_000}")
    edited(tmp_path, FIRST, "rebalances = 0")
    assert check_facts(tmp_path) == RuleResult(RULE)

    edited(tmp_path, SECOND, "rebalances = 0")
    assert [one.group_id for one in differences(tmp_path) if one.column == "rebalances"] == ["billing"]


def test_sql_has_the_facts_with_their_comments(warehouse):
    write_day(warehouse, FIRST, HOUR_MS, now_ms())

    with duck_ledger(warehouse) as ledger:
        assert "daily_facts" in ledger.open_marts()
        [row] = ledger.rows(
            "select comment from duckdb_columns() where table_name = 'daily_facts' and column_name = 'longest_pause_ms'"
        )
    assert row.comment == FACTS["longest_pause_ms"].comment
