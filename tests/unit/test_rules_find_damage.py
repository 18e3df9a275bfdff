"""Each rule of `check` finds something that no other rule finds, in a ledger whose older records retention has deleted.

The tables are damaged in DuckDB's memory. The rules about chains find every damage, so they are not compared here.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.damaged_tables import bad_value
from tests.support.ledgers import a_day
from wakeroll_model.decision_order import ERA_SQL
from wakeroll_model.decisions import AnyDecision, FailedMessages, LockAnswer
from wakeroll_model.queue import Queue
from wakeroll_model.replay import encode_decision
from wakeroll_model.rows import (
    ASSIGNMENTS,
    CHAIN,
    CHAINED,
    DIVERGENCES,
    SNAPSHOTS,
    TABLES,
    DivergenceRow,
    SnapshotRow,
)
from wakeroll_model.snapshot_proof import hash_of
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.chains import Chains
from wakeroll_pipeline.ledger.column_types import columns_of, in_duckdb
from wakeroll_pipeline.ledger.delta_files import quoted
from wakeroll_pipeline.ledger.duck_ledger import DuckLedger, has_era, open_ledger
from wakeroll_pipeline.ledger.view_queries import KINDS
from wakeroll_pipeline.questions.quality.all_rules import all_rules
from wakeroll_pipeline.questions.quality.chain_rules import CHAIN_RULES
from wakeroll_pipeline.questions.quality.check_in_duckdb import check_in_duckdb
from wakeroll_pipeline.questions.quality.declared_in_duckdb import judge_types
from wakeroll_pipeline.questions.quality.model_rules import violations_in_decisions
from wakeroll_pipeline.questions.quality.rule import HISTORY, Rule
from wakeroll_pipeline.questions.quality.schema_rules import rules_of_values
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

Row = dict[str, Any]
Tables = dict[str, list[Row]]
Found = dict[str, int]
"""Broken rule -> number of rows that break it."""

GROUPS, QUEUES = "wakeroll.groups", "wakeroll.queues"
BILLING, AUDIT, WAITS = "groups-1.1", "groups-2.1", "queues-1.1"
"""Shards of the story: its two groups, and the queue that is waited for."""
FIRST_KEPT = 24
"""Offset of the first record of `billing` that retention has left."""


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckLedger]:
    """A ledger with its chain."""
    warehouse = tmp_path_factory.mktemp("sound")
    create_tables(warehouse)
    chains, story = Chains(warehouse), a_day()
    for _ in range(2):
        story.arrive("payments", 0, 502)
        story.pull("audit", "a1", "payments", 0, 501)
        story.pass_seconds(1)
    append(warehouse, story, chains, batches=2)
    append_snapshots(warehouse, story, chains)
    divergence = DivergenceRow(
        partition=1, offset=10_000, shard=BILLING, seq=1, published_ms=story.now_ms, writer=None, kept_writer=None,
        json="{}",
    )  # fmt: skip
    ArrowSink(chains=chains).append(arrow_table(DivergenceRow, [divergence]), warehouse / DIVERGENCES.name)
    opened = open_ledger(warehouse)
    yield opened
    opened.close()


def rows_in(ledger: DuckLedger, name: str) -> list[Row]:
    """Return the rows of a table, sorted by key."""
    columns, key = (", ".join(map(quoted, names)) for names in (TABLES[name].row.__struct_fields__, TABLES[name].key))
    rows: list[Row] = ledger.connection.sql(f"select {columns} from {name} order by {key}").to_arrow_table().to_pylist()
    return rows


@pytest.fixture(scope="module")
def rows(ledger: DuckLedger) -> Tables:
    """Its rows: of the first seconds of `billing`, retention has left one decision, and what is made from decisions."""
    tables = {name: rows_in(ledger, name) for name in TABLES}
    tables[CHAIN.name], tables[DIVERGENCES.name] = [], []
    old = [row for row in tables["decisions"] if row["shard"] == BILLING and row["cause"]["offset"] < FIRST_KEPT]
    tables["decisions"] = [row for row in tables["decisions"] if row not in old or row is old[0]]
    tables["events"] = [
        row
        for row in tables["events"]
        if (row["topic"], row["partition"]) != (GROUPS, 1) or row["offset"] >= FIRST_KEPT
    ]
    return tables


@contextmanager
def holding(ledger: DuckLedger, tables: Mapping[str, list[Row]]) -> Iterator[None]:
    """Let the tables of a ledger have these rows, whatever they are, for a block."""
    connection = ledger.connection
    for name, its in tables.items():
        table = TABLES[name]
        free = pa.schema([pa.field(field.name, field.type) for field in arrow_schema_of(table.row)])
        connection.register("given", pa.Table.from_pylist([*its], schema=free))
        shown = [f'cast("{one.name}" as {in_duckdb(one.type)}) as "{one.name}"' for one in columns_of(table.row)]
        if has_era(table):
            shown.insert(1, f"{ERA_SQL} as era")
        connection.execute(f"create or replace table held_{name} as select {', '.join(shown)} from given")
        connection.unregister("given")
        connection.execute(f"alter view {name} rename to whole_{name}")
        connection.execute(f"create view {name} as from held_{name}")
    try:
        yield
    finally:
        for name in tables:
            connection.execute(f"drop view {name}")
            connection.execute(f"alter view whole_{name} rename to {name}")


def broken(ledger: DuckLedger, tables: Mapping[str, list[Row]]) -> Found:
    with holding(ledger, tables):
        outcomes = check_in_duckdb(ledger)
    assert [one.not_checked for one in outcomes if one.not_checked] == []
    return {one.rule.name: one.broken for one in outcomes if one.broken and one.rule not in CHAIN_RULES.values()}


def test_the_ledger_is_sound(ledger, rows):
    assert broken(ledger, rows) == {}


# --- the rules that are generated: for each of them a row of its own, which breaks no other rule ---


def an_event(rows: Tables, number: int) -> Row:
    """Return a tick in a partition of its own."""
    [tick] = [row for row in rows["events"] if row["type"] == "tick"][:1]
    return tick | {"topic": GROUPS, "partition": 100 + number, "offset": 0}


def a_decision(rows: Tables, number: int) -> Row:
    """Return the first decision of a shard of its own."""
    [row] = [row for row in rows["decisions"] if row["shard"] == AUDIT and row["kind"] == "membership"][:1]
    header = {"shard": f"groups-{100 + number}.1", "seq": 1}
    return row | header | {"json": json.dumps(json.loads(row["json"]) | header)}


def an_old_row(rows: Tables, table: str, number: int) -> Row:
    """Return a row about a group of its own; its decision is so old that retention has deleted it."""
    [row] = [row for row in rows[table] if row["shard"] == BILLING][:1]
    how = {"how": "released", "previous_client_id": "c0"} if table == ASSIGNMENTS.name else {}
    return row | how | {"group_id": f"group-{number}", "seq": number}


def a_snapshot(_rows: Tables, number: int) -> Row:
    """Return the state of a partition of its own, before its first record."""
    return {"topic": GROUPS, "partition": 100 + number, "offset": -1, "era": 1, "version": 1, "at_ms": 1, "body": b"s"}


def a_line(_rows: Tables, number: int) -> Row:
    """Return a line of no table."""
    words = {"kind": "rows", "positions": "{}", "rows_hash": "", "reason": "", "line_hash": ""}
    return {"table_name": "other", "number": 100 + number, "at_ms": 1, "rows": 1, **words}


SOUND_ROWS: Mapping[str, Callable[[Tables, int], Row]] = {
    "events": an_event,
    "decisions": a_decision,
    "assignments": lambda rows, number: an_old_row(rows, "assignments", number),
    "offsets": lambda rows, number: an_old_row(rows, "offsets", number),
    "snapshots": a_snapshot,
    "chain": a_line,
}


OF_TWINS: Mapping[str, Callable[[Tables], Row]] = {
    # `decisions.numbering` finds a second copy of any newer one.
    "decisions": lambda rows: next(row for row in rows["decisions"] if row["shard"] == BILLING),
    # `assignments.ownership` finds a second change of owner, but not that a new life of the owner gets the queue.
    "assignments": lambda _: {"previous_client_id": "c0", "client_id": "c0"},
}
"""Table -> values of a row of which only the rule about the key finds a second copy."""


def with_its_hash(row: Row) -> Row:
    """Return a snapshot with the hash that proves its columns, whatever they are."""
    return row | {"row_hash": None if None in row.values() else hash_of(SnapshotRow(**row))}


def without_old_rows(rows: Tables, table: str) -> list[Row]:
    """Return the rows of a table but those whose decisions retention has deleted: others get their numbers."""
    _, first, *_ = [row["seq"] for row in rows["decisions"] if row["shard"] == BILLING]
    return [
        row for row in rows[table] if not (has_era(TABLES[table]) and row["shard"] == BILLING and row["seq"] < first)
    ]


def of_rows(table: str) -> list[Rule]:
    return [rule for rule in all_rules()[table] if not rule.is_of_type]


@pytest.mark.parametrize("table", SOUND_ROWS)
def test_each_rule_of_a_column_finds_a_row_that_no_other_rule_finds(ledger, rows, table):
    """All rows at once: as many rows are found as there are rules, and each rule finds its own."""
    damaged = without_old_rows(rows, table)
    expected = {}
    for number, rule in enumerate(of_rows(table), 1):
        row = SOUND_ROWS[table](rows, number)
        if not rule.column:
            row |= OF_TWINS[table](rows) if table in OF_TWINS else {}
        if rule.column:
            row[rule.column] = bad_value(rule)
        if table == SNAPSHOTS.name:
            row = with_its_hash(row)
        damaged += [row] if rule.column or row in damaged else [row, row]
        expected[rule.name] = 1 if rule.column else 2

    assert broken(ledger, rows | {table: damaged}) == expected


@pytest.mark.parametrize("table", SOUND_ROWS)
def test_the_rows_without_damage_break_no_rule(ledger, rows, table):
    """So what the rules find is the damage."""
    more = [SOUND_ROWS[table](rows, number) for number, _ in enumerate(of_rows(table), 1)]
    if table == SNAPSHOTS.name:
        more = [*map(with_its_hash, more)]

    assert broken(ledger, rows | {table: [*without_old_rows(rows, table), *more]}) == {}


@pytest.mark.parametrize("table", TABLES)
def test_each_rule_of_a_type_finds_a_column_that_no_other_rule_finds(table):
    """A column has the values of another type, or is missing."""
    rules = [rule for rule in all_rules()[table] if rule.is_of_type]
    declared = {column.name: in_duckdb(column.type) for column in columns_of(TABLES[table].row)}

    assert {rule.column for rule in rules} == declared.keys()
    for rule in rules:
        for stored in (
            declared | {rule.column: "DATE"},
            {name: declared[name] for name in declared if name != rule.column},
        ):
            assert [one.rule for one in judge_types(rules, declared, stored) if one.broken] == [rule]


def a_decision_of_each_kind(rows: Tables) -> Mapping[str, Row]:
    """Return view -> a row of `decisions` that it shows, of those whose records are deleted."""
    old = next(row for row in rows["decisions"] if row["shard"] == BILLING)
    names = {"group_id": "billing", "client_id": "c1"}
    failed = {"first_offset": 1, "last_offset": 1, "messages": 1, "attempt": 1, "outcome": "dead", "level": 0}
    others: Mapping[str, AnyDecision] = {
        "locks": LockAnswer(**names, queue=Queue("orders", "", 0), outcome="granted"),
        "failed_messages": FailedMessages(**names, **failed, queue=Queue("orders", "", 0)),
    }
    found = {}
    for view, declared in KINDS.items():
        kind = str(declared.__struct_config__.tag)
        text = next((said(row) for row in rows["decisions"] if row["kind"] == kind), None)
        text = text or json.loads(encode_decision(others[view]))
        text |= {name: old[name] for name in ("shard", "seq", "at_ms", "cause")}
        columns = {"kind": kind, "group_id": text["group_id"], "client_id": text.get("client_id")}
        found[view] = old | columns | {"json": json.dumps(text)}
    return found


def test_the_columns_of_decisions_and_of_their_views_need_no_more_rules(rows):
    """Two rules find each value that a field may not have, also in an old decision; columns are compared with it."""
    old, kinds = next(row for row in rows["decisions"] if row["shard"] == BILLING), a_decision_of_each_kind(rows)
    forged = [old | {name: None} for name in ("shard", "seq", "kind", "at_ms", "cause", "json")]
    forged += [old | {"kind": "unknown"}, old | {"seq": 0}]
    for view, row in kinds.items():
        for rule in rules_of_values(view, KINDS[view]):
            forged.append(row | {"json": json.dumps(said(row) | {rule.column: bad_value(rule)})})

    assert [*map(violations, kinds.values())] == [set()] * len(KINDS)
    for row in forged:
        assert violations(row) & {"decisions.json", "decisions.header"}, row


def violations(row: Row) -> set[str]:
    """Return the rules of the model that a row of `decisions` breaks alone."""
    cause = {f"cause_{name}": (row["cause"] or {}).get(name) for name in ("topic", "partition", "offset")}
    judged = SimpleNamespace(**row | cause, is_archived=False)
    return {one.rule for one in violations_in_decisions([judged])}


# --- the rules that compare rows: for each of them the smallest damage that no other rule finds ---


def decisions(tables: Tables, shard: str, kind: str = "") -> list[Row]:
    """Return the decisions of a shard, or those of one kind, whose records are archived."""
    rows = [row for row in tables["decisions"] if row["shard"] == shard]
    return [row for row in (rows[1:] if shard == BILLING else rows) if kind in ("", row["kind"])]


def of_shard(tables: Tables, table: str, shard: str) -> list[Row]:
    return [row for row in tables[table] if row["shard"] == shard]


def old_rows(tables: Tables, table: str) -> list[Row]:
    """Return the rows whose decisions retention has deleted."""
    first = decisions(tables, BILLING)[0]["seq"]
    return [row for row in of_shard(tables, table, BILLING) if row["seq"] < first]


def said(row: Row) -> Row:
    """Return the fields of the JSON of a decision."""
    fields: Row = json.loads(row["json"])
    return fields


def rewrite(row: Row, **changed: object) -> None:
    """Let the JSON of a decision say something else."""
    row["json"] = json.dumps(said(row) | changed, separators=(",", ":"))


def made_of(tables: Tables, table: str, decision: Row) -> Row:
    """Return the row of a table that was made of a decision."""
    [row] = [row for row in of_shard(tables, table, decision["shard"]) if row["seq"] == decision["seq"]]
    return row


def ticks_without_decisions(tables: Tables) -> Iterator[Row]:
    """Yield the ticks of `audit` that caused no decision."""
    causes = {(row["cause"]["topic"], row["cause"]["partition"], row["cause"]["offset"]) for row in tables["decisions"]}
    for row in tables["events"]:
        place = row["topic"], row["partition"], row["offset"]
        if row["type"] == "tick" and place[:2] == (GROUPS, 2) and place[2] > 10 and place not in causes:
            yield row


def say_another_time(tables: Tables) -> None:
    of_shard(tables, "assignments", AUDIT)[0]["from_ms"] += 1


def raise_an_old_epoch(tables: Tables) -> None:
    old_rows(tables, "assignments")[0]["epoch"] += 1_000


def name_another_former_owner(tables: Tables) -> None:
    next(row for row in old_rows(tables, "assignments") if row["previous_client_id"])["previous_client_id"] = "c9"


def let_an_owner_leave(tables: Tables) -> None:
    """No decision says what became of its queues."""
    row = next(one for one in decisions(tables, AUDIT, "membership") if said(one)["change"] == "joined")
    rewrite(row, change="left")


def answer_a_pull_again(tables: Tables) -> None:
    """The pull that has no answer now is not due yet."""
    *_, before, last = decisions(tables, WAITS, "wake")
    rewrite(last, request_id=said(before)["request_id"])


def lose_the_events_of_a_partition(tables: Tables) -> None:
    tables["events"] = [row for row in tables["events"] if (row["topic"], row["partition"]) != (GROUPS, 2)]


def add_an_owner(tables: Tables) -> None:
    last = of_shard(tables, "assignments", AUDIT)[-1]
    tables["assignments"].append(
        last | {"seq": 10_000, "group_id": "nobody", "how": "first", "previous_client_id": None}
    )


def use_an_epoch_again(tables: Tables) -> None:
    before, row = decisions(tables, BILLING, "rebalance")[:2]
    rewrite(row, epoch=said(before)["epoch"])


def commit_what_is_committed(tables: Tables) -> None:
    """The table does not have the progress beyond an offset, because of which it may stay."""
    *_, row = decisions(tables, BILLING, "offset")
    made = made_of(tables, "offsets", row)
    before = [
        one["committed_offset"] for one in of_shard(tables, "offsets", BILLING) if one["queue_id"] == made["queue_id"]
    ][-2]
    made["committed_offset"] = before
    rewrite(row, offset=before)


def name_another_client(tables: Tables) -> None:
    decisions(tables, AUDIT, "membership")[0]["client_id"] = "c9"


def cut_a_decision(tables: Tables) -> None:
    row = decisions(tables, AUDIT, "assignment")[0]
    row["json"] = row["json"][:-1]


def lose_a_decision(tables: Tables) -> None:
    tables["decisions"].remove(decisions(tables, AUDIT, "membership")[-1])


def assign_a_queue_less(tables: Tables) -> None:
    *_, row = (one for one in decisions(tables, AUDIT, "assignment") if said(one)["queues"])
    rewrite(row, queues=said(row)["queues"][1:])


def publish_a_day_later(tables: Tables) -> None:
    decisions(tables, AUDIT)[0]["published_ms"] += 86_400_000


def call_an_expired_member_unregistered(tables: Tables) -> None:
    row = next(one for one in decisions(tables, BILLING, "handover") if said(one)["how"] == "expired")
    rewrite(row, how="unregistered")
    made_of(tables, "assignments", row)["how"] = "unregistered"


def decide_otherwise(tables: Tables) -> None:
    names = {"shard": AUDIT, "seq": 1, "writer": "b@two:2", "kept_writer": "a@one:1"}
    tables["divergences"].append({"partition": 2, "offset": 1, "published_ms": 1, "json": "{}"} | names)


def pull_without_an_answer(tables: Tables) -> None:
    """A tick has become one."""
    pull = next(row for row in tables["events"] if row["type"] == "pull")
    its_partition = [row for row in tables["events"] if (row["topic"], row["partition"]) == (QUEUES, pull["partition"])]
    tick = next(row for row in its_partition if row["type"] == "tick" and row["offset"] > pull["offset"])
    tick |= {"type": "pull", "key": pull["key"], "value": pull["value"].replace(b"a1-waits", b"a1-asks")}


def lose_a_tick(tables: Tables) -> None:
    tables["events"].remove(next(ticks_without_decisions(tables)))


def append_nonsense(tables: Tables) -> None:
    next(ticks_without_decisions(tables)).update(value=b"nonsense", type=None)


def call_a_tick_a_heartbeat(tables: Tables) -> None:
    next(ticks_without_decisions(tables))["type"] = "heartbeat"


def commit_at_another_time(tables: Tables) -> None:
    of_shard(tables, "offsets", AUDIT)[0]["at_ms"] += 1


def raise_an_old_offset(tables: Tables) -> None:
    old_rows(tables, "offsets")[0]["committed_offset"] += 1_000_000


def flip_a_bit(tables: Tables) -> None:
    row = tables["snapshots"][0]
    row["body"] = row["body"][:-1] + bytes([row["body"][-1] ^ 1])


def lose_a_pull(tables: Tables) -> None:
    """A tick stands in its place."""
    *_, last = decisions(tables, WAITS, "wake")
    request_id = said(last)["request_id"].encode()
    pull = next(row for row in tables["events"] if row["type"] == "pull" and request_id in row["value"])
    tick = next(ticks_without_decisions(tables))
    pull |= {name: tick[name] for name in ("key", "value", "type")}


DAMAGES: Mapping[str, Callable[[Tables], None]] = {
    "assignments.decided": say_another_time,
    "assignments.epochs": raise_an_old_epoch,
    "assignments.ownership": name_another_former_owner,
    "current_assignments.owners": let_an_owner_leave,
    "decisions.answers": answer_a_pull_again,
    "decisions.caused": lose_the_events_of_a_partition,
    "decisions.derived": add_an_owner,
    "decisions.epochs": use_an_epoch_again,
    "decisions.growth": commit_what_is_committed,
    "decisions.header": name_another_client,
    "decisions.json": cut_a_decision,
    "decisions.numbering": lose_a_decision,
    "decisions.ownership": assign_a_queue_less,
    "decisions.published": publish_a_day_later,
    "decisions.telling": call_an_expired_member_unregistered,
    "divergences.none": decide_otherwise,
    "events.answered": pull_without_an_answer,
    "events.offsets": lose_a_tick,
    "events.refused": append_nonsense,
    "events.typed": call_a_tick_a_heartbeat,
    "offsets.decided": commit_at_another_time,
    "offsets.growth": raise_an_old_offset,
    "snapshots.hash": flip_a_bit,
    "wake_decisions.asked": lose_a_pull,
}


@pytest.mark.parametrize("rule", DAMAGES)
def test_each_rule_between_rows_finds_damage_that_no_other_rule_finds(ledger, rows, rule):
    tables = {name: [dict(row) for row in its] for name, its in rows.items()}

    DAMAGES[rule](tables)

    assert broken(ledger, tables).keys() == {rule}


def test_each_rule_between_rows_has_its_damage():
    assert DAMAGES.keys() | {rule.name for rule in CHAIN_RULES.values()} == {rule.name for rule in all_rules()[HISTORY]}


def lose_a_change_of_owner(tables: Tables) -> None:
    tables["assignments"].remove(of_shard(tables, "assignments", AUDIT)[-1])


def add_a_change_of_owner(tables: Tables) -> None:
    tables["assignments"].append(of_shard(tables, "assignments", AUDIT)[-1] | {"seq": 10_000})


def name_another_owner(tables: Tables) -> None:
    of_shard(tables, "assignments", AUDIT)[-1]["client_id"] = "a9"


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lose_a_change_of_owner, "assignments.decided"),
        (add_a_change_of_owner, "decisions.derived"),
        (name_another_owner, "assignments.decided"),
    ],
)
def test_what_the_dbt_test_of_changes_of_owner_finds_has_its_rules_here(ledger, rows, damage, rule):
    """`a_handover_is_a_change_of_owner` compares the decisions about hand-overs with the table `assignments`."""
    tables = {name: [dict(row) for row in its] for name, its in rows.items()}

    damage(tables)

    assert rule in broken(ledger, tables)


@pytest.mark.parametrize("table", CHAINED, ids=lambda table: table.name)
def test_the_rule_of_each_chain_finds_a_lost_row(ledger, table):
    with holding(ledger, {table.name: rows_in(ledger, table.name)[1:]}):
        outcomes = check_in_duckdb(ledger, {table.name})

    assert CHAIN_RULES[table.name] in [one.rule for one in outcomes if one.broken]
