"""The quality gate: the ledger of a story keeps all rules, and each rule is broken by what it is for."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import msgspec
import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tests.support.damaged_tables import bad_value
from tests.support.engines import ENGINES
from tests.support.running_processes import run_process
from tests.support.samples import sample
from wakeroll_model.decisions import AnyDecision, Kind
from wakeroll_model.rows import TABLES, Table
from wakeroll_pipeline.ledger.column_types import Type, columns_of, plain_type
from wakeroll_pipeline.ledger.column_types import in_duckdb as type_in_duckdb
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.schemas import schema_of
from wakeroll_pipeline.ledger.tables import open_views
from wakeroll_pipeline.questions.quality import model_rules
from wakeroll_pipeline.questions.quality.all_rules import all_rules, check
from wakeroll_pipeline.questions.quality.chain_check import ChainCheck
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb
from wakeroll_pipeline.questions.quality.comparison_rules import broken_rows, history_rules
from wakeroll_pipeline.questions.quality.declared_in_duckdb import judge_rows, judge_types
from wakeroll_pipeline.questions.quality.history_in_duckdb import history_in_duckdb
from wakeroll_pipeline.questions.quality.ordered_rows import SKIPPED, found_in_frames
from wakeroll_pipeline.questions.quality.ordered_rows import Broken as BrokenRow
from wakeroll_pipeline.questions.quality.rule import HISTORY, Rule, RuleResult
from wakeroll_pipeline.questions.quality.schema_rules import declared_rules
from wakeroll_pipeline.questions.tables_looked_at import tables_looked_at

if TYPE_CHECKING:
    from wakeroll_pipeline.questions.quality.expectation_suites import Gate

pytestmark = pytest.mark.spark

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Broken = set[tuple[str, str]]
"""(rule, key of the row that breaks it)"""


def new_gate(*arguments: Any) -> "Gate":
    """Return a new gate. Great Expectations takes seconds to import, and all processes of a run collect this file."""
    from wakeroll_pipeline.questions.quality.expectation_suites import Gate

    return Gate(*arguments)


def assert_all_hold(outcomes: Sequence[RuleResult], gate: "Gate", folder: Path) -> None:
    """Assert that every rule was asked, none is broken, and the Data Docs in the folder show all suites."""
    page = gate.write_docs()
    assert page.is_relative_to(folder)
    assert {outcome.rule.name: outcome.rows for outcome in outcomes if outcome.broken} == {}
    assert [outcome.rule for outcome in outcomes] == [rule for rules in all_rules().values() for rule in rules]
    assert all(suite in page.read_text(encoding="utf-8") for suite in all_rules())


def test_the_ledger_of_a_story_keeps_every_rule(day, tmp_path):
    """And every rule is asked."""
    outcomes = check_here(day, gate := new_gate(tmp_path, "duckdb"))

    assert_all_hold(outcomes, gate, tmp_path)


@pytest.mark.operate
def test_spark_judges_the_story_alike(spark, day, tmp_path):
    """And records the same results."""
    open_views(spark, day)

    gate = new_gate(tmp_path / "spark")
    chains = ChainCheck()
    in_spark = check(
        spark,
        gate,
        chains=lambda rules: [one for table in chains.tables_of(rules) for one in broken_here(chains, day, table)],
    )
    check_here(day, new_gate(tmp_path / "duckdb", "duckdb"))

    assert_all_hold(in_spark, gate, tmp_path)
    assert validations(tmp_path / "spark") == validations(tmp_path / "duckdb")


def broken_here(chains: ChainCheck, warehouse: Path, table: Table) -> list[BrokenRow]:
    with duck_ledger(warehouse) as opened:
        return [*chains.broken(opened, table)]


def check_here(warehouse: Path, gate: "Gate | None" = None) -> list[RuleResult]:
    with duck_ledger(warehouse) as opened:
        outcomes = check_in_duckdb(opened)
        if gate is not None:
            gate.record(outcomes, tables_looked_at(opened))
        return outcomes


def validations(folder: Path) -> dict[str, list[tuple[str, bool]]]:
    """Return suite -> its expectations with their results, as the Data Docs show them."""
    found = {}
    for file in folder.rglob("validations/**/*.json"):
        said = json.loads(file.read_text(encoding="utf-8"))
        results = [(one["expectation_config"]["meta"]["rule"], one["success"]) for one in said["results"]]
        found[said["suite_name"]] = sorted(one for one in results if not one[0].endswith(".rows"))
    assert found
    return found


def test_the_kinds_of_decisions_are_those_that_there_are():
    """The column `kind` says them by name."""
    tags = [decision.__struct_config__.tag for decision in AnyDecision.__args__]

    assert list(Kind.__args__) == tags


# --- what is declared: a row for each rule, which breaks that one ---

DECLARED = {table.name: table.row for table in TABLES.values()}


def good_value(declared: msgspec.inspect.Type, number: int) -> object:
    match plain_type(declared):
        case msgspec.inspect.IntType(ge=least):
            return number + (least or 0)
        case msgspec.inspect.StrType(pattern=pattern):
            return next(text for text in ("a", "a:1", "0/2") if pattern is None or re.search(pattern, text))
        case msgspec.inspect.LiteralType(values=words):
            return words[0]
        case msgspec.inspect.BytesType():
            return b"a"
        case msgspec.inspect.BoolType():
            return True
        case msgspec.inspect.ListType():
            return []
        case msgspec.inspect.StructType(cls=cls):
            return tuple(good_row(cls, number).values())
    raise AssertionError(declared)


def good_row(declared: type[msgspec.Struct], number: int) -> Row:
    fields = msgspec.inspect.type_info(declared).fields
    return {field.encode_name: good_value(field.type, number) for field in fields}


def nullable(schema: StructType) -> StructType:
    return StructType([type(field)(field.name, field.dataType, True) for field in schema])


@pytest.mark.parametrize("suite", sample(sorted(DECLARED.keys() - {"divergences"}), quick=2))
def test_each_declared_rule_is_broken_by_a_row_that_breaks_it(spark, suite):
    """All of them at once, each by a row of its own: each rule finds its row and no other, in both engines."""
    rules = [rule for rule in declared_rules()[suite] if rule.expectation != "ExpectColumnValuesToBeOfType"]
    key = TABLES[suite].key
    rows, expected = [], {}
    for number, rule in enumerate(rules):
        row = good_row(DECLARED[suite], number)
        if rule.name == f"{suite}.key":
            twin = dict(row)
            rows.append(twin)
            expected[rule.name] = [tuple(row[name] for name in key)] * 2
        else:
            row[rule.column] = bad_value(rule)
            expected[rule.name] = [tuple(row[name] for name in key)]
        rows.append(row)
    schema = nullable(schema_of(DECLARED[suite]))
    # In one partition: Great Expectations looks at it some fifty times, and each task has its price.
    frame = spark.createDataFrame([tuple(row.values()) for row in rows], schema).coalesce(1).persist()

    in_spark = new_gate().check(suite, rules, frame, key)
    here = judge_rows(in_duckdb(suite, rows), suite, rules, key)

    for outcomes in (in_spark, here):
        assert {one.rule.name: [tuple(row[name] for name in key) for row in one.rows] for one in outcomes} == expected
        assert {one.rule.name: one.broken for one in outcomes} == {name: len(keys) for name, keys in expected.items()}
    assert {one.looked_at for one in here} == {len(rows)}


def in_duckdb(name: str, rows: Sequence[Row]) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB that has a table of these rows."""
    connection = duckdb.connect()
    columns = columns_of(DECLARED[name])
    declared = ", ".join(f'"{one.name}" {type_in_duckdb(one.type)}' for one in columns)
    connection.execute(f"create table {name} ({declared})")
    for row in rows:
        values = [named(row[one.name], one.type) for one in columns]
        connection.execute(f"insert into {name} values ({', '.join('?' * len(values))})", values)
    return connection


def named(value: object, of: Type) -> object:
    """Return a value with a dict in place of the tuple of each struct, as DuckDB takes it."""
    if isinstance(value, tuple):
        assert isinstance(of, tuple)
        return {field.name: named(one, field.type) for field, one in zip(of, value, strict=True)}
    return value


@pytest.mark.parametrize("suite", sorted(TABLES))
def test_a_column_of_another_type_breaks_the_rule_of_its_type(spark, suite):
    """Every column at once, each with values that its other rules would take."""
    other = {"string": "binary", "binary": "string", "int": "long", "bigint": "int"}
    schema = schema_of(TABLES[suite].row)
    frame = spark.createDataFrame([tuple(good_row(TABLES[suite].row, 1).values())], schema).select(
        [f.col(c.name).cast(other.get(c.dataType.simpleString(), "string")).alias(c.name) for c in schema]
    )
    rules = [rule for rule in declared_rules()[suite] if rule.expectation == "ExpectColumnValuesToBeOfType"]

    outcomes = new_gate().check(suite, rules, frame, TABLES[suite].key)

    assert [(one.rule.column, one.broken) for one in outcomes] == [(name, 1) for name in schema.names]
    declared = {column.name: type_in_duckdb(column.type) for column in columns_of(TABLES[suite].row)}
    assert [(one.rule.column, one.broken) for one in judge_types(rules, declared, dict.fromkeys(declared, "DATE"))] == [
        (name, 1) for name in schema.names
    ]


def test_each_rule_of_the_history_is_broken_by_a_row_that_names_it(spark):
    rules = history_rules()
    rows = [(rule.name, "groups-1.1/7", "this", "that") for rule in rules]
    frame = spark.createDataFrame(rows, "rule string, at string, found string, expected string").coalesce(1).persist()

    outcomes = new_gate().check(HISTORY, rules, frame, ("at", "found", "expected"))

    row = {"at": "groups-1.1/7", "found": "this", "expected": "that"}
    assert outcomes == [RuleResult(rule, 1, [row]) for rule in rules]


# --- what compares rows: the story's ledger, corrupted ---

GROUPS, QUEUES = "wakeroll.groups", "wakeroll.queues"
BILLING, AUDIT, WAITS = "groups-1.1", "groups-2.1", "queues-1.1"
"""Shards of the story: its two groups, and the queue that is waited for."""


def event(tables: Tables, topic: str, partition: int, number: int) -> Row:
    """Return an event by its offset."""
    return next(
        row for row in tables["events"] if (row["topic"], row["partition"], row["offset"]) == (topic, partition, number)
    )


def decisions(tables: Tables, shard: str, kind: str) -> list[Row]:
    found = [row for row in tables["decisions"] if row["shard"] == shard and row["kind"] == kind]
    return sorted(found, key=lambda row: row["seq"])


def rows_of(tables: Tables, table: str, shard: str) -> list[Row]:
    return sorted((row for row in tables[table] if row["shard"] == shard), key=lambda row: row["seq"])


def rewrite(row: Row, **changed: object) -> None:
    """Let a decision say something else."""
    row["json"] = json.dumps(json.loads(row["json"]) | changed, separators=(",", ":"))


def at(row: Row) -> str:
    return f"{row['shard']}/{row['seq']}"


def decide_otherwise(tables: Tables) -> Broken:
    row = decisions(tables, BILLING, "membership")[0]
    other = {"partition": row["partition"], "offset": 10_000, "published_ms": row["published_ms"], "json": "{}"}
    names = {"shard": row["shard"], "seq": row["seq"], "writer": "b@two:2", "kept_writer": "a@one:1"}
    tables["divergences"].append(other | names)
    return {("divergences.none", at(row))}


def lose_an_event(tables: Tables) -> Broken:
    tables["events"].remove(event(tables, GROUPS, 3, 50))
    return {("events.offsets", f"{GROUPS}/3/51")}


def lose_a_refusal(tables: Tables) -> Broken:
    [row] = decisions(tables, "groups-0.1", "rejected")
    tables["decisions"].remove(row)
    return {("events.refused", f"{GROUPS}/0/{row['cause']['offset']}")}


def lose_an_answer(tables: Tables) -> Broken:
    """The last decision of its shard, so that no number is missing."""
    row = decisions(tables, WAITS, "wake")[-1]
    tables["decisions"].remove(row)
    return {("events.answered", place_of_pull(tables, row))}


def place_of_pull(tables: Tables, wake: Row) -> str:
    request_id = json.loads(wake["json"])["request_id"]
    [pull] = [row for row in tables["events"] if row["type"] == "pull" and request_id.encode() in bytes(row["value"])]
    return f"{pull['topic']}/{pull['partition']}/{pull['offset']}"


def damage_the_json(tables: Tables) -> Broken:
    row = decisions(tables, AUDIT, "membership")[0]
    row["json"] = row["json"][:-1]
    return {("decisions.json", at(row))}


def name_another_client(tables: Tables) -> Broken:
    row = decisions(tables, BILLING, "membership")[0]
    row["client_id"] = "c9"
    return {("decisions.header", at(row))}


def ask_something_else(tables: Tables) -> Broken:
    """The pull that was asked has no answer then, and the answer has no pull."""
    wake = decisions(tables, WAITS, "wake")[0]
    place = place_of_pull(tables, wake)
    pull = event(tables, QUEUES, 1, int(place.rpartition("/")[2]))
    pull["value"] = bytes(pull["value"]).replace(b"a1-waits:1", b"a1-waits:0")
    return {("events.answered", place), ("wake_decisions.asked", at(wake))}


def name_no_cause(tables: Tables) -> Broken:
    """Of the last decision of its shard, so that causes still come in order."""
    row = rows_of(tables, "decisions", AUDIT)[-1]
    row["cause"] = row["cause"] | {"offset": 10_000}
    rewrite(row, cause=row["cause"])
    return {("decisions.caused", at(row))}


def lose_a_decision(tables: Tables) -> Broken:
    tables["decisions"].remove(decisions(tables, BILLING, "membership")[1])
    return {("decisions.numbering", BILLING)}


def use_an_epoch_again(tables: Tables) -> Broken:
    before, row = decisions(tables, BILLING, "rebalance")[:2]
    rewrite(row, epoch=json.loads(before["json"])["epoch"])
    return {("decisions.epochs", BILLING)}


def answer_twice(tables: Tables) -> Broken:
    first, second = decisions(tables, WAITS, "wake")[:2]
    place = place_of_pull(tables, second)
    rewrite(second, request_id=json.loads(first["json"])["request_id"])
    return {("decisions.answers", WAITS), ("events.answered", place)}


def say_another_time(tables: Tables) -> Broken:
    row = rows_of(tables, "assignments", AUDIT)[3]
    row["from_ms"] += 1
    return {("assignments.decided", at(row))}


def say_another_epoch(tables: Tables) -> Broken:
    row = rows_of(tables, "offsets", AUDIT)[0]
    row["epoch"] += 1
    return {("offsets.decided", at(row))}


def lose_both_ends(tables: Tables) -> Broken:
    """The first and the last row of a shard: no other row of the table shows that there were rows."""
    rows = rows_of(tables, "offsets", BILLING)
    for row in (rows[0], rows[-1]):
        tables["offsets"].remove(row)
    return {("offsets.decided", at(rows[0])), ("offsets.decided", at(rows[-1]))}


def publish_before_the_cause(tables: Tables) -> Broken:
    row = decisions(tables, AUDIT, "membership")[0]
    row["published_ms"] = 0
    return {("decisions.published", at(row))}


def publish_after_the_log(tables: Tables) -> Broken:
    row = decisions(tables, AUDIT, "rebalance")[-1]
    row["published_ms"] += 86_400_000
    return {("decisions.published", at(row))}


def call_a_heartbeat_a_tick(tables: Tables) -> Broken:
    row = next(row for row in tables["events"] if row["type"] == "heartbeat")
    row["type"] = "tick"
    return {("events.typed", f"{row['topic']}/{row['partition']}/{row['offset']}")}


def lose_all_hand_overs(tables: Tables) -> Broken:
    """Then the table says nothing about its shard."""
    rows = rows_of(tables, "assignments", AUDIT)
    tables["assignments"] = [row for row in tables["assignments"] if row not in rows]
    return {("assignments.decided", at(row)) for row in rows}


def lose_the_newest_decisions(tables: Tables) -> Broken:
    """The numbers of the others have no gap; but `offsets` has a row of one of the lost ones."""
    last = rows_of(tables, "offsets", BILLING)[-1]
    row = last | {"seq": 10_000, "committed_offset": last["committed_offset"] + 1}
    tables["offsets"].append(row)
    return {("decisions.derived", at(row))}


def forget_a_queue(tables: Tables) -> Broken:
    row = next(row for row in decisions(tables, BILLING, "assignment") if json.loads(row["json"])["queues"])
    rewrite(row, queues=json.loads(row["json"])["queues"][1:])
    return {("decisions.ownership", BILLING)}


def give_what_another_had(tables: Tables) -> Broken:
    row = next(row for row in rows_of(tables, "assignments", AUDIT) if row["previous_client_id"])
    row["previous_client_id"] = "a9"
    return {("assignments.ownership", AUDIT), ("assignments.decided", at(row))}


def commit_less(tables: Tables) -> Broken:
    """In the table alone."""
    row = rows_of(tables, "offsets", BILLING)[-1]
    row["committed_offset"] = 1
    return {("offsets.growth", BILLING), ("offsets.decided", at(row))}


def ask_for_nothing_back(tables: Tables) -> Broken:
    row = next(row for row in decisions(tables, BILLING, "assignment") if json.loads(row["json"])["revoke"])
    rewrite(row, revoke=[])
    return {("decisions.telling", BILLING), ("decisions.ownership", BILLING)}


def decide_to_go_back(tables: Tables) -> Broken:
    """In the decision, and in the table that is made from it."""
    decided = decisions(tables, BILLING, "offset")[-1]
    rewrite(decided, offset=1)
    rows_of(tables, "offsets", BILLING)[-1]["committed_offset"] = 1
    return {("decisions.growth", BILLING), ("offsets.growth", BILLING)}


def keep_what_a_crashed_client_had(tables: Tables) -> Broken:
    """In the table alone: c2 was silent for too long, c3 has its queue."""
    row = [row for row in rows_of(tables, "assignments", BILLING) if row["queue_id"] == 3][-1]
    tables["assignments"].remove(row)
    return {("assignments.decided", at(row)), ("current_assignments.owners", "billing/orders//3")}


def fall_back_an_epoch(tables: Tables) -> Broken:
    row = rows_of(tables, "assignments", AUDIT)[-1]
    row["epoch"] = 0
    return {("assignments.epochs", AUDIT), ("assignments.decided", at(row))}


def exchange_states(tables: Tables) -> Broken:
    """The body of another snapshot of the same shard: each of them can be decoded."""
    row, other = (one for one in tables["snapshots"] if (one["topic"], one["partition"]) == ("wakeroll.groups", 0))
    row["body"] = other["body"]
    return {("snapshots.hash", f"wakeroll.groups/0/1/{row['offset']}")}


@dataclass(frozen=True)
class Round:
    """Corruptions of one ledger that do not meet: what they break is told apart by the rows that it names."""

    corruptions: Sequence[Callable[[Tables], Broken]]


ROUNDS = (
    Round((lose_an_event, lose_a_refusal, lose_an_answer, damage_the_json, name_another_client, lose_both_ends)),
    Round((use_an_epoch_again, answer_twice, say_another_time, say_another_epoch, lose_the_newest_decisions)),
    Round((lose_all_hand_overs, publish_before_the_cause, publish_after_the_log, call_a_heartbeat_a_tick)),
    Round((decide_otherwise, forget_a_queue, give_what_another_had, commit_less, keep_what_a_crashed_client_had)),
    Round(
        (
            *(ask_something_else, name_no_cause, lose_a_decision),
            *(ask_for_nothing_back, fall_back_an_epoch, decide_to_go_back, exchange_states),
        )
    ),
)
found_broken: set[str] = set()
"""Rules of the history that the rounds have broken so far."""


@pytest.fixture(scope="module")
def ledger(engine, day) -> dict[str, tuple[StructType, list[Row]]]:
    """The story's tables as plain rows."""
    session = engine.newSession()
    open_views(session, day)
    frames = {name: session.table(name) for name in TABLES}
    return {
        name: (frame.schema, [row.asDict(recursive=True) for row in frame.collect()]) for name, frame in frames.items()
    }


def write(ledger, tables: Tables, warehouse: Path) -> None:
    """Write tables that nobody has recorded."""
    for name, (schema, _) in ledger.items():
        # `open_views` has added the era to the rows of decisions.
        columns = [column for column in schema.names if column != "era" or name == "snapshots"]
        rows = [{column: row[column] for column in columns} for row in tables[name]]
        types = to_arrow_schema(StructType([schema[column] for column in columns]))
        write_deltalake(str(warehouse / name), pa.Table.from_pylist(rows, schema=types))


@pytest.fixture(scope="module", params=range(len(ROUNDS)))
def corrupted(request, ledger, tmp_path_factory) -> tuple[Tables, Path, Broken]:
    """The tables of a round, as rows and as a warehouse that nobody has recorded, and what they break."""
    tables = {name: [dict(row) for row in rows] for name, (_, rows) in ledger.items()}
    expected: Broken = set()
    for corrupt in ROUNDS[request.param].corruptions:
        broken = corrupt(tables)
        assert not broken & expected, "two corruptions of a round cannot be told apart"
        expected |= broken
    warehouse = tmp_path_factory.mktemp("corrupted")
    write(ledger, tables, warehouse)
    return tables, warehouse, expected


def found_in(warehouse: Path) -> set[tuple[object, ...]]:
    with duck_ledger(warehouse) as opened:
        return set(history_in_duckdb(opened.connection, history_rules()).rows)


def test_each_rule_of_the_history_is_broken_by_a_corruption(corrupted):
    """By the rows that it names, and by nothing else."""
    _, warehouse, expected = corrupted

    found = {(rule, at) for rule, at, *_ in found_in(warehouse)}
    outcomes = check_here(warehouse)

    assert found == expected
    broken = {outcome.rule.name for outcome in outcomes if outcome.broken and outcome.rule.compares}
    assert broken == {rule for rule, _ in found}
    found_broken.update(rule for rule, _ in found)


@pytest.mark.operate
def test_spark_finds_the_same_rows_and_says_the_same_about_them(spark, day, ledger, corrupted):
    open_views(spark, day)
    tables, warehouse, _ = corrupted
    for name, (schema, _) in ledger.items():
        rows = [tuple(row[column] for column in schema.names) for row in tables[name]]
        spark.createDataFrame(rows, schema, verifySchema=False).createOrReplaceTempView(name)

    with broken_rows(spark) as rows:
        found = {tuple(row) for row in rows.distinct().collect() if not row.rule.endswith(SKIPPED)}

    assert found == found_in(warehouse)


def test_every_rule_of_the_history_was_broken_by_one():
    """A rule that nothing breaks proves nothing."""
    by_damage = {rule.name for rule in CHAIN_RULES.values()}  # tests/unit/test_chains.py
    assert found_broken == {rule.name for rule in history_rules()} - by_damage


def test_a_word_of_an_earlier_version_is_no_broken_json(monkeypatch):
    """Ledgers of before stay readable; what their rules were, this version does not ask."""

    def broken(*changes: str) -> Broken:
        rows = []
        for seq, change in enumerate(changes, 5):
            header = {"shard": "groups-1.1", "seq": seq, "kind": "membership", "group_id": "billing", "client_id": "c1"}
            cause = {"topic": GROUPS, "partition": 1, "offset": seq}
            said = header | {"at_ms": 1, "cause": cause, "epoch": 1, "change": change}
            names = {f"cause_{name}": value for name, value in cause.items()}
            rows.append(header | {"at_ms": 1, "json": json.dumps(said), "is_archived": True} | names)
        [frame] = found_in_frames(model_rules.violations_in_decisions, BrokenRow, iter([pd.DataFrame(rows)]))
        found = zip(frame["rule"], frame["at"], strict=True)
        return {(rule, place) for rule, place in found if not rule.endswith(SKIPPED)}

    monkeypatch.setattr(model_rules, "_FORMER_WORDS", {"membership": {"change": {"supplanted": "joined"}}})

    assert broken("supplanted", "supplanted") == set()
    assert broken("supplanted", "invented") == {("decisions.json", "groups-1.1/6")}


LEFT_OUT = f"not looked at: 1 groups of {BILLING}, with 1 decisions in words of an earlier version"


def left_out(outcomes: Sequence[RuleResult]) -> dict[str, str]:
    found = {one.rule.name: one.skipped for one in outcomes if one.rule.table == "decisions"}
    return {name: skipped for name, skipped in found.items() if skipped and not name.endswith(".chain")}


@pytest.fixture(scope="module")
def of_before(ledger, tmp_path_factory) -> tuple[Path, Broken]:
    """A warehouse with a word of an earlier version, and what is broken in it besides."""
    tables = {name: [dict(row) for row in rows] for name, (_, rows) in ledger.items()}
    row = next(
        row for row in decisions(tables, BILLING, "handover") if json.loads(row["json"])["how"] == "unregistered"
    )
    rewrite(row, how="replaced")
    [made] = [one for one in rows_of(tables, "assignments", BILLING) if one["seq"] == row["seq"]]
    made["how"] = "replaced"
    lost = lose_a_decision(tables)
    warehouse = tmp_path_factory.mktemp("earlier words")
    write(ledger, tables, warehouse)
    return warehouse, lost


def test_a_word_of_an_earlier_version_hides_no_other_violation(of_before):
    """The rules that read no words judge the shard, and the others its other groups; what is left out is said."""
    warehouse, lost = of_before

    outcomes = check_here(warehouse)

    broken = {one.rule.name for one in outcomes if one.broken and one.rule.table == "decisions"}
    assert broken == {rule for rule, _ in lost}
    assert left_out(outcomes) == {"decisions.ownership": LEFT_OUT, "decisions.telling": LEFT_OUT}


@pytest.mark.operate
def test_a_word_of_an_earlier_version_is_left_out_in_spark_too(spark, of_before):
    open_views(spark, of_before[0])

    assert left_out(check(spark, new_gate(), {"decisions"})) == {
        "decisions.ownership": LEFT_OUT,
        "decisions.telling": LEFT_OUT,
    }


def test_the_declared_words_are_those_of_all_versions():
    """A column that has had a word may have it for ever."""
    words = {
        f"{suite}.{rule.column}": rule.arguments["value_set"]
        for suite, rules in declared_rules().items()
        for rule in rules
        if rule.name.endswith(".words")
    }
    former = {name for name, known in words.items() if "replaced" in known}

    assert former == {"assignments.how"}
    assert all(len(known) == len(set(known)) for known in words.values())


# --- the command ---


@pytest.fixture(params=ENGINES)
def command(wakeroll, monkeypatch, request) -> Callable[..., tuple[int, str]]:
    """The command, run in this process, in either engine; it returns the exit code and what it says."""
    if request.param == "spark":
        request.getfixturevalue("engine")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str]:
        code, said, complaint = wakeroll("check", "--engine", request.param, *arguments)
        return code, said + complaint

    return run


@pytest.fixture(scope="module")
def tampered(day, tmp_path_factory) -> Path:
    """A home whose newest version of `offsets` has lost the second row of `billing`."""
    home = tmp_path_factory.mktemp("tampered")
    shutil.copytree(day, home / "warehouse")
    table = DeltaTable(home / "warehouse" / "offsets")
    rows = table.to_pyarrow_table().to_pylist()
    first = min(row["seq"] for row in rows if row["group_id"] == "billing")
    table.delete(f"group_id = 'billing' and seq = {first + 1}")
    return home


def test_a_broken_rule_is_told_with_its_rows_and_exit_code_1(command, tampered):
    """And it was not broken in the version before."""
    where = ["--home", str(tampered), "--table", "offsets"]

    code, said = command(*where)
    assert code == 1
    assert "2 broken; Data Docs: " in said
    assert re.search(r"offsets\.chain +│ line \d+ of ", said)
    assert re.search(r"offsets\.decided +│ groups-1\.1/\d+ +│ no row", said)
    assert (tampered / "quality").is_dir()

    code, said = command(*where, "--version", "2")
    assert code == 0, said
    assert "all hold" in said
    assert "offsets 2" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--version", "1"], "--version needs --table and excludes --at"),
        (["--version", "1", "--table", "groups"], "--version needs --table and excludes --at"),
        (["--version", "1", "--table", "offsets", "--at", "0"], "--version needs --table and excludes --at"),
        (
            ["--table", "nothing"],
            "no table or view 'nothing' has rules; it must be one of: assignments, chain, current_",
        ),
        (["--at", "yesterday"], "'yesterday' is not a time"),
        (["--at", "0"], "table 'events' has no version of 1970-01-01T00:00:00.000Z; the oldest kept version is of 20"),
        (["--version", "99", "--table", "offsets"], "table 'offsets' has no version 99; it has 0 to 3"),
    ],
)
def test_wrong_usage_is_told_with_exit_code_2(command, tampered, arguments, complaint):
    code, said = command("--home", str(tampered), *arguments)

    assert (code, complaint in said) == (2, True), said


@pytest.mark.operate
@pytest.mark.parametrize(
    ("table", "verdict"),
    [
        ("offsets", "all hold"),
        ("snapshots", "1 skipped: the rows have no"),
    ],
)
def test_spark_is_asked_in_a_process_of_its_own(day, table, verdict):
    """There, Great Expectations must not be the first to start a session: it would lack Delta."""
    asked = ["check", "--engine", "spark", "--table", table, "--home", str(day.parent)]
    done = run_process([sys.executable, "-m", "wakeroll_pipeline.cli", *asked])

    assert (done.returncode, verdict in done.stdout) == (0, True), done.stdout + done.stderr


def test_without_great_expectations_there_is_one_clear_sentence(command, monkeypatch, day):
    """The extra is not what `make run` installs."""
    monkeypatch.delitem(sys.modules, "wakeroll_pipeline.questions.quality.expectation_suites", raising=False)
    monkeypatch.setitem(sys.modules, "great_expectations", None)

    code, said = command("--home", str(day.parent))

    assert code == 2
    assert "`check` needs the extra `quality`" in said
    assert "pip install 'wakeroll[quality]'" in said


# --- what people read ---


def test_the_page_about_quality_lists_the_rules_that_there_are():
    page = (Path(__file__).parents[2] / "docs" / "quality.md").read_text(encoding="utf-8")
    compared = "".join(f"| `{rule.name}` | {rule.says} |\n" for rule in history_rules())
    declared = "".join(
        f"| `{suite}` | {', '.join(f'{count} {what}' for what, count in kinds_of(rules).items())} |\n"
        for suite, rules in declared_rules().items()
    )

    assert f"| rule | what must hold |\n| --- | --- |\n{compared}\n" in page
    assert f"| table | rules |\n| --- | --- |\n{declared}\n" in page


def kinds_of(rules: Sequence[Rule]) -> dict[str, int]:
    """Return what rules are about -> how many: type, null, bounds, pattern, words, key."""
    kinds: dict[str, int] = {}
    for rule in rules:
        what = rule.name.rpartition(".")[2]
        kinds[what] = kinds.get(what, 0) + 1
    return kinds
