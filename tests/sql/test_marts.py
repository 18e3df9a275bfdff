"""The marts of a story: what dbt makes of the ledger, value by value."""

import re
import shutil
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from duckdb import DuckDBPyConnection
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.support.ledgers import Story, a_day, write_ledger
from tests.support.running_processes import run_process
from tests.support.statements import statement_of
from wakeroll_model.decisions import (
    Change,
    FailedOutcome,
    FencedReason,
    How,
    Kind,
    Trigger,
    WakeReason,
)
from wakeroll_model.events import Reset, ResetOffset
from wakeroll_model.queue import Queue
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, duck_ledger
from wakeroll_pipeline.ledger.ledger import Ledger
from wakeroll_pipeline.ledger.spark_ledger import SparkLedger
from wakeroll_pipeline.questions import marts

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
QUESTIONS = ROOT / "docs" / "questions.md"

LEDGER = "day"

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def asking(open_in: Callable[[Path], Ledger]) -> Callable[[Path], Ask]:
    """Return how to ask the tables, views and marts of a warehouse, in each engine."""

    def asking(warehouse: Path) -> Ask:
        ledger = open_in(warehouse)
        if isinstance(ledger, DuckLedger):
            ledger.open_marts()
        else:
            assert isinstance(ledger, SparkLedger)
            marts.open_marts(ledger.spark, warehouse)
        return lambda sql: [*ledger.stream(sql)]

    return asking


@pytest.fixture(scope="module")
def ask(asking: Callable[[Path], Ask], home: Path, built: list[marts.BuildResult]) -> Ask:
    """Ask the marts of the day."""
    assert built
    return asking(home / "warehouse")


def test_every_model_is_built_and_no_rule_is_broken(built: list[marts.BuildResult]):
    """The singular tests are the invariants that SQL can ask."""
    assert [outcome for outcome in built if not outcome.is_good] == []
    rules = {path.stem for path in (marts.PROJECT / "tests").glob("*.sql")}
    assert rules <= {outcome.name for outcome in built if outcome.kind == "test"}
    models = {path.stem for path in (marts.PROJECT / "models").rglob("*.sql")}
    assert {outcome.name for outcome in built if outcome.kind == "model"} == models


def test_the_timeline_says_who_owned_a_queue_and_when(ask: Ask):
    """The question that no other coordinator can answer."""
    periods = ask(
        "select client_id, how, epoch, substr(cast(owned_from as string), 12, 8), owned_s, silent_s "
        "from ownership_timeline "
        "where group_id = 'billing' and topic = 'orders' and queue_id = 3 order by era, seq"
    )

    assert periods == [
        ("c1", "first", 1, "22:13:20", 11.0, 0.0),
        ("c2", "released", 3, "22:13:31", 65.0, 46.0),
        ("c3", "expired", 5, "22:14:36", None, None),
    ]


def test_current_ownership_is_what_the_view_says(ask: Ask):
    mine = ask("select group_id, topic, queue_id, client_id, epoch from current_ownership order by 1, 2, 3")

    columns = "group_id, topic, queue_id, client_id, epoch"
    assert mine == ask(f"select {columns} from current_assignments order by 1, 2, 3")
    assert len(mine) == 24


def test_lag_is_what_is_there_and_not_committed(ask: Ask):
    """Messages, the age of the oldest of them, and no promise to catch up with who produces faster."""
    lag = ask(
        "select group_id, topic, queue_id, committed_offset, end_offset, lag_messages, lag_s, consumed_per_s, "
        "catch_up_s from consumer_lag where (group_id, topic, queue_id) in "
        "(('billing', 'orders', 3), ('audit', 'orders', 8), ('audit', 'payments', 0)) order by 1, 2, 3"
    )

    assert lag == [
        ("audit", "orders", 8, 400, 2_000, 1_600, 20.0, None, None),
        ("audit", "payments", 0, 400, 501, 101, 110.0, None, None),
        ("billing", "orders", 3, 300, 2_000, 1_700, 110.0, 2.5, None),
    ]


def test_the_mart_and_the_view_have_the_same_lag(ask: Ask):
    """People ask the view, dashboards read the mart."""
    columns = "group_id, topic, broker, queue_id, {} as owner, committed_offset, end_offset, lag_messages, {} as lag_s"
    mart = ask(f"select {columns.format('offset_owner', 'lag_s')} from consumer_lag order by 1, 2, 3, 4, 5")
    owner = "coalesce(client_id, '')"
    view = ask(f"select {columns.format(owner, 'lag_ms / 1000')} from lag order by 1, 2, 3, 4, 5")

    assert mart == view
    assert len(mart) > 20


def test_a_rebalance_costs_what_it_moved_and_how_long_that_took(ask: Ask):
    """Only the crash may repeat messages: four queues, read to 1,000 at most, committed to 200."""
    cost = ask(
        "select epoch, trigger, moved, handed_over, handed_over_abruptly, handover_s, longest_release_s, "
        "repeats_possible from rebalance_cost where group_id = 'billing' order by epoch"
    )

    assert cost == [
        (1, "join", 0, 8, 0, 0.0, 0.0, 0),
        (2, "join", 4, 4, 0, 1.0, 1.0, 0),
        (3, "join", 3, 3, 0, 1.0, 1.0, 0),
        (4, "leave", 5, 5, 0, 1.0, 1.0, 0),
        (5, "expire", 4, 4, 4, 0.0, 0.0, 3_200),
        (6, "route", 0, 2, 0, 0.0, 0.0, 0),
        (7, "config", 0, 0, 0, None, 0.0, 0),
    ]


def test_a_crash_costs_the_time_in_which_nobody_read_the_queues(ask: Ask):
    """From the member's last heartbeat on, not from the moment at which the coordinator gave it up."""
    [(detail,)] = ask("select detail from memberships where group_id = 'billing' and change = 'expired'")
    silent_s = int(re.fullmatch(r"no heartbeat for (\d+) ms", detail)[1]) / 1_000
    cost = ask(
        "select longest_pause_s, total_pause_s, handed_over from rebalance_cost "
        "where group_id = 'billing' and trigger = 'expire'"
    )

    assert silent_s > 30
    assert cost == [(silent_s, 4 * silent_s, 4)]


def test_wakes_conflicts_and_storms(ask: Ask):
    wakes = ask("select topic, reason, wakes, held_p50_ms, arrival_to_wake_p99_ms from wake_latency order by 2")
    conflicts = ask("select group_id, client_id, detail, ended_by, is_open from subscription_conflicts")
    storms = ask("select group_id, rebalances, moved, first_epoch, last_epoch, triggers from storms")

    assert wakes == [
        ("payments", "arrival", 1, 10_000.0, 300.0),
        ("payments", "timeout", 1, 20_000.0, None),
        ("payments", "unknown", 1, 0.0, None),
    ]
    assert conflicts == [("audit", "a2", "strategy SPREAD differs from AVG of a1", "agreed", False)]
    assert storms == [("billing", 7, 16, 1, 7, "config, expire, join, leave, route")]
    assert ask("select * from duplicate_clients") == []


def test_the_marts_are_asked_by_name(built: list[marts.BuildResult], home: Path, wakeroll):
    """Beside the ledger's own tables; but not as they were, for they have another past."""
    assert built
    question = "select status, queues from group_health join groups using (group_id) where group_id = 'billing'"
    asked = ["sql", question, "--format", "csv", "--home", str(home)]

    assert wakeroll(*asked)[:2] == (0, "status,queues\nOK,10\n")
    code, _, complaint = wakeroll(*asked, "--version", "offsets=1")
    assert code == 2
    assert "no table or view 'group_health'; it must be one of: assignments, " in complaint


def test_the_answers_in_the_docs_are_those_of_the_day(home: Path, built: list[marts.BuildResult], request):
    """An operator's questions; the page is written by ``pytest --rewrite``."""
    assert built
    marts.build(home / "warehouse", home / "logs", "--select", "path:analyses", command="compile")
    compiled = home / "logs" / "dbt" / "compiled" / "wakeroll" / "analyses"
    page = HEAD
    with duck_ledger(home / "warehouse") as ledger:
        ledger.open_marts()
        for path in sorted((marts.PROJECT / "analyses").glob("*.sql")):
            question, _, sql = path.read_text(encoding="utf-8").partition("\n")
            # Here the marts have no database and no schema.
            query = re.sub(r'"\w+"\."\w+"\.', "", (compiled / path.name).read_text(encoding="utf-8"))
            answer = table_of(ledger.connection.execute(query))
            page += f"\n## {question.removeprefix('-- ')}\n\n```sql\n{statement_of(sql).strip()}\n```\n\n{answer}\n"

    if request.config.getoption("--rewrite"):
        QUESTIONS.write_text(page, encoding="utf-8")
    assert QUESTIONS.read_text(encoding="utf-8") == page


HEAD = """\
# Questions and their answers

Each question is one statement, a file in `dbt_like_sql/analyses/`. A user runs it with `wakeroll sql`, in both
engines, after `wakeroll marts` has built the marts; dbt alone runs those with `{{ }}` in them. The answers are computed
from an invented day with two groups, `billing` and `audit`: members join, leave and crash, a topic grows, settings
change, offsets advance, and pulls are held. A test runs the queries and compares their results with this page, and
`tests/sql/test_questions.py` and `tests/sql/test_deployments.py` compare the later ones with answers that are known
beforehand, in both engines;
`make test ARGS="tests/sql/test_marts.py --rewrite"` generates the page.
"""


def table_of(answer: DuckDBPyConnection) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, datetime):
            return value.strftime("%H:%M:%S")
        return "" if value is None else str(value)

    columns = [name for name, *_ in answer.description or ()]
    lines = [columns, ["---"] * len(columns)]
    lines += [[cell(value) for value in row] for row in answer.fetchall()]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(rows if len(rows) > 2 else [*rows, "", "(none)"])


def test_dbt_is_told_the_ledgers_views_as_they_are(request):
    """It cannot read our declarations; ``pytest --rewrite`` writes them down for it."""
    if request.config.getoption("--rewrite"):
        marts.VIEWS_MACRO.write_text(marts.views_macro(), encoding="utf-8")

    assert marts.VIEWS_MACRO.read_text(encoding="utf-8") == marts.views_macro()


INCREMENTAL = ("ownership_timeline", "rebalance_cost")
A_RUN_OF_ITS_OWN = """
import sys
from pathlib import Path
from wakeroll_pipeline.questions import marts
from wakeroll_pipeline.spark.session import start_brief_session
from wakeroll_pipeline.settings import Settings

settings = Settings(home=sys.argv[1])
spark = start_brief_session(settings, "marts", for_minutes=True)
models = ("--select", "+ownership_timeline", "+rebalance_cost")
outcomes = marts.build(settings.warehouse, settings.logs, *models, command="run", engine="spark")
assert all(outcome.is_good for outcome in outcomes), outcomes
"""


@pytest.mark.operate
def test_another_process_takes_up_what_is_new(engine: SparkSession, day: Path, tmp_path: Path):
    """A process begins with an empty catalog, and would build again, without a word, what it does not find there."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(day, warehouse)
    models = ("--select", "+ownership_timeline", "+rebalance_cost")
    marts.build(warehouse, tmp_path / "logs", *models, command="run", engine="spark")

    def rows_of(name: str) -> list[str]:
        frame = engine.read.format("delta").load(str(warehouse / "marts" / name))
        return sorted(repr(tuple(row)) for row in frame.collect())

    first = {name: rows_of(name) for name in INCREMENTAL}
    longer = a_day()
    longer.join("billing", "c4", "orders")
    longer.pass_seconds(12)
    longer.crash("audit", "a2")
    longer.pass_seconds(60)
    write_ledger(warehouse, longer, batches=1)

    done = run_process([sys.executable, "-c", A_RUN_OF_ITS_OWN, tmp_path])

    assert done.returncode == 0, done.stdout + done.stderr
    second = {name: rows_of(name) for name in INCREMENTAL}
    for name in INCREMENTAL:
        history = engine.sql(f"describe history delta.`{warehouse / 'marts' / name}`").orderBy("version").collect()
        assert [row.operation for row in history] == ["CREATE OR REPLACE TABLE AS SELECT", "CHANGE COLUMNS", "MERGE"]
        metrics = {metric: int(value) for metric, value in history[-1].operationMetrics.items()}
        assert metrics["numTargetRowsInserted"] == len(second[name]) - len(first[name]) > 0
        # What had ended stays as it was written.
        assert metrics["numTargetRowsUpdated"] == len(set(first[name]) - set(second[name])) < len(first[name])

    # Its views are those of this process's first run, of the tables that it is now told of.
    marts.build(warehouse, tmp_path / "logs", "--select", *INCREMENTAL, "--full-refresh", command="run", engine="spark")
    assert {name: rows_of(name) for name in INCREMENTAL} == second


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a group for each way of being ill; its tables, and their health."""
    story = Story()
    groups = ("warn", "stall", "stop", "rewind", "catches_up", "caught_up")
    for group in groups:
        story.route(group, 1, ends=1_000)
        story.join(group, f"{group}-1", group)
    story.pass_seconds(3)
    for turn in range(6):
        for group in groups:
            story.arrive(group, 0, 1_100 + 100 * turn)
        story.commit("warn", 100 + 10 * turn)
        story.commit("stall", 100)
        story.commit("catches_up", 100 + 150 * turn)
        story.commit("caught_up", (1_100 if turn < 5 else 1_500) + 100 * min(turn, 4))
        if turn < 2:
            story.commit("stop", 100 + 10 * turn)
        if turn != 3:
            story.commit("rewind", 500 + 10 * turn if turn < 3 else 200 + turn)
        else:
            back = [ResetOffset(queue=Queue("rewind", "", 0), offset=200)]
            story.append(Reset(request_id="r1", group_id="rewind", offsets=back, by="an operator"))
        story.pass_seconds(2)
    home = tmp_path_factory.mktemp("ill")
    write_ledger(home / "warehouse", story, batches=1)
    return home


def test_health_follows_burrows_rules(asking: Callable[[Path], Ask], ill: Path):
    """No threshold: the commits themselves say what is usual."""
    done = marts.build(ill / "warehouse", ill / "logs", "--select", "+group_health", command="run")

    assert [outcome for outcome in done if not outcome.is_good] == []
    assert dict(asking(ill / "warehouse")("select group_id, status from group_health")) == {
        "warn": "WARN",
        "stall": "STALL",
        "stop": "STOP",
        "rewind": "REWIND",
        "catches_up": "OK",
        "caught_up": "OK",
    }


@pytest.mark.parametrize(
    ("model", "column", "declared"),
    [
        ("stg_decisions", "kind", Kind),
        ("stg_memberships", "change", Change),
        ("stg_handovers", "how", How),
        ("ownership_timeline", "how", How),
        ("stg_fencings", "reason", FencedReason),
        ("stg_failed_messages", "outcome", FailedOutcome),
        ("stg_rebalances", "trigger", Trigger),
        ("stg_wakes", "reason", WakeReason),
    ],
)
def test_dbt_accepts_every_word_that_the_model_has(model: str, column: str, declared: Any):
    """And no word that nothing ever wrote."""
    files = [marts.PROJECT / "models" / name for name in ("staging/_staging.yml", "marts/_marts.yml")]
    models = {one["name"]: one for file in files for one in yaml.safe_load(file.read_text(encoding="utf-8"))["models"]}
    [found] = [one for one in models[model]["columns"] if one["name"] == column]
    [accepted] = [test["accepted_values"] for test in found["data_tests"] if "accepted_values" in test]

    assert set(accepted["arguments"]["values"]) - {"replaced"} == set(get_args(declared)) - {"replaced"}


@pytest.mark.operate
def test_a_ledger_whose_first_day_has_gone_breaks_no_rule(asking: Callable[[Path], Ask], cut: Path, tmp_path: Path):
    """What is kept of before, the last words about each queue and member, has gaps that are nobody's fault."""
    shutil.copytree(cut, tmp_path / "warehouse")

    models = ("--select", "path:models/staging", "+current_ownership", "rebalance_cost", "consumer_lag")
    done = marts.build(tmp_path / "warehouse", tmp_path / "logs", *models)

    assert [outcome for outcome in done if not outcome.is_good] == []
    rules = {path.stem for path in (marts.PROJECT / "tests").glob("*.sql")}
    assert rules <= {outcome.name for outcome in done}
    owned = asking(tmp_path / "warehouse")("select client_id from current_ownership where group_id = 'audit'")
    assert set(owned) == {("a1",)}


@pytest.mark.operate
def test_every_rule_finds_what_breaks_it(engine: SparkSession, day: Path, tmp_path: Path):
    """A test that selects nothing whatever happens would be green for ever."""
    warehouse = tmp_path / "warehouse"
    shutil.copytree(day, warehouse)

    def again(table: str, **changed: Any) -> None:
        frame = engine.read.format("delta").load(str(warehouse / table))
        frame.withColumns(changed).write.format("delta").mode("append").save(str(warehouse / table))

    engine.sql(f'delete from delta.`{warehouse / "decisions"}` where json like \'%"reason":"timeout"%\'')
    again("events")
    again("decisions")
    again("offsets", client_id=f.lit("a thief"))
    again("offsets", seq=f.col("seq") + 1_000, committed_offset=f.lit(0).cast("long"))
    # Each queue goes to its owners once more, by records of before.
    again("assignments", seq=f.col("seq") + 1_000)
    again("assignments", seq=f.col("seq") + 2_000)
    again("decisions", seq=f.col("seq") + 1_000, cause=f.col("cause").withField("offset", f.lit(0).cast("long")))
    models = ("--select", "path:models/staging", "ownership_timeline", "rebalance_cost")
    marts.build(warehouse, tmp_path / "logs", *models, command="run", engine="spark")
    for mart in ("ownership_timeline", "rebalance_cost"):
        engine.sql(f"delete from delta.`{warehouse / 'marts' / mart}` where group_id = 'audit'")
    done = marts.build(warehouse, tmp_path / "logs", "--select", "test_type:singular", command="test", engine="spark")

    # The day has no slices; test_sliced_marts.py plants owners of slices that overlap.
    rules = {path.stem for path in (marts.PROJECT / "tests").glob("*.sql")} - {"owned_slices_never_overlap"}
    found = {outcome.name: outcome.failures for outcome in done if outcome.status == "fail"}
    assert rules <= found.keys()
    # Two pulls were answered more than once, the last one never.
    assert found["every_pull_is_answered_once"] == 3


def test_without_dbt_one_sentence_says_what_to_install(wakeroll, home, monkeypatch):
    monkeypatch.setitem(sys.modules, "dbt.cli.main", None)

    def sentence(engine: str, extra: str) -> str:
        return (
            f"wakeroll: dbt in {engine} needs the extra `{extra}` (dbt is missing); "
            f"install it with: pip install 'wakeroll[{extra}]'\n"
        )

    assert wakeroll("marts", "--home", str(home)) == (2, "", sentence("DuckDB", "sql"))
    assert wakeroll("marts", "--home", str(home), "--engine", "spark") == (2, "", sentence("Spark", "sql-spark"))
