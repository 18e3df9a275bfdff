"""Chains of tables: each column and line is proven, also after deletions, gaps and other releases.

What `check` says about each kind of damage is in `tests/sql/test_hidden_damage.py`.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.chained_ledgers import BATCHES, append, append_snapshots, create_tables
from tests.support.ledgers import Story, a_day, a_long_life
from wakeroll.connection import Topics
from wakeroll_model.chain import Head, Line, broken_links, hash_of_rows, heads_of_text, linked, text_of_heads
from wakeroll_model.rows import CHAIN, DECISIONS, EVENTS, RECORDED, SNAPSHOTS, ChainRow, Table
from wakeroll_pipeline.ledger import proven_rows
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.chains import METADATA, Chains, gathered_lines
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger, whole_versions
from wakeroll_pipeline.ledger.proven_rows import chain_of, covered_by
from wakeroll_pipeline.ledger.row_hashes import parts_of
from wakeroll_pipeline.operators.ledger_rows import KafkaRecord, read_decisions, rows_of
from wakeroll_pipeline.questions.quality import chain_check
from wakeroll_pipeline.questions.quality.chain_check import ChainCheck, broken_chain
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink
from wakeroll_pipeline.storage.place import Place

PROVEN = (*RECORDED, SNAPSHOTS)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with its chain."""
    warehouse = tmp_path_factory.mktemp("sound")
    create_tables(warehouse)
    chains, story = Chains(warehouse), a_long_life()
    append(warehouse, story, chains)
    append_snapshots(warehouse, story, chains)
    chains.gather(ArrowSink().append)
    return warehouse


@pytest.fixture
def warehouse(sound: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(sound, tmp_path / "warehouse"))


def broken(warehouse: Path, published: Sequence[Head] = ()) -> list[tuple[str, str, str | None, str | None]]:
    with duck_ledger(warehouse) as ledger:
        found = [one for table in PROVEN for one in broken_chain(ledger, chain_of(ledger, table), published)]
    return [(one.rule, one.at, one.found, one.expected) for one in found]


def test_a_sound_ledger_has_no_violation(sound):
    assert broken(sound) == []
    with duck_ledger(sound) as ledger:
        chains = {table.name: chain_of(ledger, table) for table in RECORDED}
    assert len(chains[EVENTS.name].lines) == BATCHES + 1, "and the beginning"


def rows_in(warehouse: Path, table: Table) -> pa.Table:
    return DeltaTable(warehouse / table.name).to_pyarrow_table()


def overwrite(warehouse: Path, table: Table, rows: pa.Table) -> None:
    write_deltalake(warehouse / table.name, rows.cast(arrow_schema_of(table.row)), mode="overwrite")


def without(index: int) -> Callable[[pa.Table], pa.Table]:
    return lambda rows: pa.concat_tables([rows.slice(0, index % len(rows)), rows.slice(index % len(rows) + 1)])


@pytest.mark.parametrize(
    ("table", "column"),
    [
        pytest.param(table, name, id=f"{table.name}-{name}", marks=[] if at % 3 == 0 else [pytest.mark.operate])
        for at, (table, name) in enumerate(
            (table, name)
            for table in PROVEN
            for name in table.row.__struct_fields__
            if (table, name) != (SNAPSHOTS, "body")
        )
    ],
)
def test_every_column_is_proven(warehouse, table, column):
    """One value of one row is changed."""
    rows = rows_in(warehouse, table)
    values = rows[column].to_pylist()
    index = next((number for number, value in enumerate(values) if value is not None), 0)
    field = rows.schema.field(column)
    values[index] = True if pa.types.is_boolean(field.type) else _other(values[index])
    overwrite(
        warehouse, table, rows.set_column(rows.schema.get_field_index(column), field, pa.array(values, field.type))
    )

    assert {rule for rule, *_ in broken(warehouse)} == {f"{table.name}.chain"}


def _other(value: object) -> object:
    match value:
        case int():
            return value + 1_000_000
        case str():
            return value + "x"
        case bytes():
            return value + b"x"
        case None:
            return "x"
        case dict():
            return value | {"offset": value["offset"] + 1_000_000}
    raise TypeError(value)


@pytest.mark.parametrize("table", RECORDED, ids=lambda table: table.name)
def test_a_table_without_its_newest_commit_is_named_alone(warehouse, table):
    """Readers leave out the newest batch then, because not all tables have it; the others have lost nothing."""
    max((warehouse / table.name / "_delta_log").glob("*.json")).unlink()

    versions = whole_versions(warehouse)
    assert versions["events"] < BATCHES
    with duck_ledger(warehouse, versions) as ledger:
        found = [one.rule for its in PROVEN for one in broken_chain(ledger, chain_of(ledger, its))]
    assert found == [f"{table.name}.chain"]


def test_a_chain_that_is_emptied_or_lacks_a_line_is_found(warehouse):
    lines = rows_in(warehouse, CHAIN)
    index = next(
        number for number, line in enumerate(lines.to_pylist()) if (line["table_name"], line["number"]) == ("events", 3)
    )
    overwrite(warehouse, CHAIN, without(index)(lines))
    assert [one[:3] for one in broken(warehouse)] == [("events.chain", "line 4", "line 4 behind line 2")]
    overwrite(warehouse, CHAIN, lines.slice(0, 0))
    assert broken(warehouse) == [], "the lines are in the commits too"


@pytest.mark.parametrize("column", [name for name in ChainRow.__struct_fields__ if name != "table_name"])
def test_a_line_that_is_edited_is_found(warehouse, column):
    lines = rows_in(warehouse, CHAIN)
    rows = lines.to_pylist()
    rows[[(row["table_name"], row["number"]) for row in rows].index(("events", 3))][column] = (
        "x"
        if column
        in (
            "kind",
            "positions",
            "rows_hash",
            "reason",
            "line_hash",
        )
        else 77
    )
    overwrite(warehouse, CHAIN, pa.Table.from_pylist(rows, schema=lines.schema))

    assert {rule for rule, *_ in broken(warehouse)} == {"events.chain"}


def test_lines_that_are_not_gathered_are_read_from_the_commits(tmp_path):
    create_tables(tmp_path)
    append(tmp_path, a_day(), Chains(tmp_path), gathers=False)

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        assert chain_of(ledger, EVENTS).lines[0].kind == "begin"


def test_the_appends_of_a_minute_share_a_line(tmp_path):
    """At rest, lines would need more bytes than all rows."""
    create_tables(tmp_path)
    chains = Chains(tmp_path)
    append(tmp_path, a_day(), chains, batches=20, gathers=False)

    def lines() -> list[tuple[int, str, int]]:
        with duck_ledger(tmp_path) as ledger:
            return [(line.number, line.kind, line.rows) for line in chain_of(ledger, EVENTS).lines]

    rows = len(rows_in(tmp_path, EVENTS))
    assert DeltaTable(tmp_path / EVENTS.name).version() == 20, "each append is a commit"
    assert (lines(), broken(tmp_path)) == ([(1, "begin", 0), (2, "rows", rows)], [])
    chains.gather(ArrowSink().append)
    append(tmp_path, _later(tmp_path), chains, gathers=False)
    assert (lines(), broken(tmp_path)) == ([(1, "begin", 0), (2, "rows", rows), (3, "rows", 3)], [])
    chains.gather(ArrowSink().append)
    delete(tmp_path, EVENTS, "offset = 5")
    assert next(iter(broken(tmp_path)))[1].startswith("line 2 of ")


def test_a_line_that_may_grow_is_not_one_to_be_kept_elsewhere(tmp_path):
    """`check --against` would not find it any more."""
    create_tables(tmp_path)
    chains = Chains(tmp_path)
    append(tmp_path, a_day(), chains, gathers=False)
    with duck_ledger(tmp_path) as ledger:
        first = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    assert {head.number for head in first} == {1}
    assert chains.heads() == []
    append(tmp_path, _later(tmp_path), chains, gathers=False)
    assert broken(tmp_path, first) == []

    chains.gather(ArrowSink().append)
    with duck_ledger(tmp_path) as ledger:
        gathered = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    assert sorted(chains.heads(), key=str) == sorted(gathered, key=str)
    append(tmp_path, _later(tmp_path), chains, gathers=False)
    assert broken(tmp_path, gathered) == []


def test_a_line_is_not_gathered_while_an_append_extends_it(tmp_path):
    """Otherwise its commit would have another line of the same number. Another thread appends to another table."""
    create_tables(tmp_path)
    chains, sink = Chains(tmp_path), ArrowSink()
    append(tmp_path, a_day(), chains, gathers=False)
    rows = arrow_table(EVENTS.row, [])
    rows = rows_in(tmp_path, EVENTS).slice(0, 1).cast(rows.schema)
    later = rows.set_column(rows.schema.get_field_index("offset"), rows.schema.field("offset"), pa.array([10**6]))
    chains.lines(EVENTS, DeltaTable(tmp_path / EVENTS.name), later)

    chains.gather(sink.append)

    gathered = {line.table for line in gathered_lines(tmp_path, "kind = 'rows'")}
    assert gathered == {table.name for table in RECORDED} - {EVENTS.name}
    chains.forget(EVENTS)
    append(tmp_path, _later(tmp_path), chains, gathers=False)
    chains.gather(sink.append)
    assert broken(tmp_path) == []


def test_a_gap_ends_a_line(tmp_path):
    create_tables(tmp_path)
    chains, story = Chains(tmp_path), a_day()
    append(tmp_path, story, chains, gathers=False)
    later = _later(tmp_path)
    later.rows = later.rows[1:]
    append(tmp_path, later, chains, batches=1, gathers=False)

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        lines = chain_of(ledger, EVENTS).lines
    assert [(line.kind, line.rows) for line in lines[-2:]] == [("gap", 1), ("rows", 2)]
    assert [line.number for line in lines] == [1, 2, 3, 4]


def test_a_process_continues_the_chain_of_the_one_before(tmp_path):
    create_tables(tmp_path)
    story = a_day()
    half = len(story.rows) // 2
    first, second = Story(), Story()
    first.rows, second.rows = story.rows[:half], story.rows[half:]
    append(tmp_path, first, Chains(tmp_path))
    append(tmp_path, second, Chains(tmp_path))

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        lines = chain_of(ledger, EVENTS).lines
    assert [line.number for line in lines] == [*range(1, len(lines) + 1)]
    assert [line.kind for line in lines].count("begin") == 1


def test_a_ledger_of_before_is_proven_from_where_its_chain_begins(tmp_path):
    create_tables(tmp_path)
    story = a_day()
    half = len(story.rows) // 2
    first, second = Story(), Story()
    first.rows, second.rows = story.rows[:half], story.rows[half:]
    append_without_chain(tmp_path, first)
    append(tmp_path, second, Chains(tmp_path))
    rows = rows_in(tmp_path, EVENTS)

    assert broken(tmp_path) == []
    times = rows["at_ms"].to_pylist()
    overwrite(tmp_path, EVENTS, without(times.index(min(times)))(rows))
    assert broken(tmp_path) == [], "the row is from before the chain"


def test_rows_that_an_earlier_release_has_written_meanwhile_are_on_record(tmp_path):
    """After a way back to a release without chains, and forth again."""
    create_tables(tmp_path)
    story = a_day()
    third = len(story.rows) // 3
    parts = [Story(), Story(), Story()]
    for number, part in enumerate(parts):
        part.rows = story.rows[number * third : (number + 1) * third]
    append(tmp_path, parts[0], Chains(tmp_path))
    append_without_chain(tmp_path, parts[1])
    assert {expected for *_, expected in broken(tmp_path)} != set()
    append(tmp_path, parts[2], Chains(tmp_path))

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        found = [line for line in chain_of(ledger, EVENTS).lines if line.kind == "found"]
    assert [line.reason for line in found] == ["written without lines"]
    delete(tmp_path, EVENTS, f"at_ms = {parts[1].rows[5][3]}")
    assert {rule for rule, *_ in broken(tmp_path)} == {"events.chain"}


def test_a_table_that_was_lost_and_written_again_begins_again(warehouse):
    shutil.rmtree(warehouse / EVENTS.name)
    DeltaTable.create(warehouse / EVENTS.name, schema=arrow_schema_of(EVENTS.row))
    assert {rule for rule, *_ in broken(warehouse)} == {"events.chain"}
    story = Story()
    story.rows = [row for row in a_day().rows if row[0] != Topics().decisions]
    append(warehouse, story, Chains(warehouse))

    assert broken(warehouse) == []
    with duck_ledger(warehouse) as ledger:
        begins = [line.reason for line in chain_of(ledger, EVENTS).lines if line.kind == "begin"]
    assert begins == ["", "the table was created again, or emptied"]
    delete(warehouse, EVENTS, "offset = 5")
    assert {rule for rule, *_ in broken(warehouse)} == {"events.chain"}


def test_rows_after_a_line_are_checked_without_those_before(warehouse):
    with duck_ledger(warehouse) as ledger:
        last = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    append(warehouse, _later(warehouse), Chains(warehouse))

    def found() -> list[str]:
        check = ChainCheck(since=last)
        with duck_ledger(warehouse) as ledger:
            check.leave_out_checked_rows(ledger)
            assert ledger.rows("select count(*) as n from events")[0].n <= 3
            return [one.rule for table in RECORDED for one in check.broken(ledger, table)]

    assert found() == []
    delete(warehouse, DECISIONS, "seq = 5")
    assert found() == [], "it is before the line"
    groups = [row for row in rows_in(warehouse, EVENTS).to_pylist() if row["topic"] == Topics().groups]
    newest = max(row["offset"] for row in groups if row["partition"] == 0)
    delete(warehouse, EVENTS, f"offset = {newest} and topic = '{Topics().groups}' and partition = 0")
    assert found() == ["events.chain"]


@pytest.mark.parametrize("batches", [10, 40])
def test_the_rows_after_a_line_are_checked_without_old_files_and_lines(tmp_path, monkeypatch, batches):
    """However many there are: the old files are moved away, and the lines that are read back are counted."""
    create_tables(tmp_path)
    chains = Chains(tmp_path)
    append(tmp_path, a_long_life(), chains, batches=batches)
    chains.gather(ArrowSink().append)
    later = _later(tmp_path)
    with duck_ledger(tmp_path) as ledger:
        last = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    files = [sorted((tmp_path / table.name).glob("*.parquet"), key=os.path.getmtime) for table in RECORDED]
    old = [file for its in files for file in its[:-1]]  # that of the line is written after its time
    append(tmp_path, later, chains, batches=1)
    chains.gather(ArrowSink().append)
    monkeypatch.setattr(chain_check, "_CLOCKS_MS", 0)
    monkeypatch.setattr(proven_rows, "_WALKED", 2)

    check, read = ChainCheck(since=last), []
    with duck_ledger(tmp_path) as ledger:
        for file in old:
            file.unlink()
        rows = ledger.rows
        ledger.rows = lambda sql, **values: read.append(values) or rows(sql, **values)  # type: ignore[method-assign]
        check.leave_out_checked_rows(ledger)
        seen = [ledger.rows(f"select count(*) as n from {table.name}")[0].n for table in (*RECORDED, CHAIN)]
        assert [one for table in RECORDED for one in check.broken(ledger, table)] == []
    lines = [values["first"] - values["low"] for values in read if {"first", "low"} <= values.keys()]
    assert (seen[:4], check.notes) == ([3, 0, 0, 0], [])
    assert seen[4] <= 2 * len(RECORDED) + 1, "the line, the one before it, and the new one"
    assert sum(lines) <= 10 * len(RECORDED)


def test_all_rows_are_read_if_those_of_the_new_files_are_not_proven(tmp_path, monkeypatch):
    """The clock of a later process may be behind: then its files seem to be old."""
    create_tables(tmp_path)
    append(tmp_path, a_day(), chains := Chains(tmp_path))
    chains.gather(ArrowSink().append)
    with duck_ledger(tmp_path) as ledger:
        last = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    append(tmp_path, later := _later(tmp_path), chains, batches=1)
    chains.gather(ArrowSink().append)
    monkeypatch.setattr(chain_check, "_CLOCKS_MS", -3_600_000)

    def found() -> list[str]:
        check = ChainCheck(since=last)
        with duck_ledger(tmp_path) as ledger:
            check.leave_out_checked_rows(ledger)
            assert ledger.rows("select count(*) as n from events")[0].n <= 3
            return [one.rule for table in RECORDED for one in check.broken(ledger, table)]

    assert found() == []
    delete(tmp_path, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset = {later.rows[-1][2]}")
    assert found() == ["events.chain"]


def test_a_deletion_after_the_line_lets_all_rows_be_read(warehouse):
    with duck_ledger(warehouse) as ledger:
        last = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    chains = Chains(warehouse)
    with chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "old", ArrowSink().append):
        delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= 60")

    check = ChainCheck(since=last)
    with duck_ledger(warehouse) as ledger:
        check.leave_out_checked_rows(ledger)
        assert [*check.broken(ledger, EVENTS)] == []
    [note] = check.notes
    assert note.startswith("all rows of events are read: line ")
    assert note.endswith(" (cut) replaces the lines before it")


@pytest.mark.parametrize("gathers", [True, False], ids=["gathered", "in the commits"])
def test_a_part_of_a_chain_proves_what_the_whole_proves(tmp_path, gathers):
    """From any line on: `check --since` reads no line before it."""
    create_tables(tmp_path)
    chains, append_rows = Chains(tmp_path), ArrowSink().append
    append(tmp_path, a_long_life(), chains, batches=8)
    if gathers:
        with chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "old", append_rows):
            delete(tmp_path, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= 60")
        append(tmp_path, _later(tmp_path), chains)
        chains.gather(append_rows)

    with duck_ledger(tmp_path) as ledger:
        for table in RECORDED:
            whole = chain_of(ledger, table)
            covered = covered_by(whole.lines)
            for first in range(1, len(whole.lines) + 1):
                part = chain_of(ledger, table, first)
                assert [*part.lines] == [line for line in whole.lines if line.number >= first]
                assert covered_by(part.lines, part.begins).last == covered.last
                after = {span.line.number: span.after for span in covered_by(part.lines, part.begins).spans}
                assert after == {span.line.number: span.after for span in covered.spans if span.line.number >= first}
                assert [*broken_chain(ledger, part, since=first)] == []


def append_without_chain(warehouse: Path, story: Story) -> None:
    sink = ArrowSink()
    events = [KafkaRecord(*row) for row in story.rows]
    topics = Topics()
    decisions = read_decisions(one for one in events if one.topic == topics.decisions)
    rows = rows_of((one for one in events if one.topic != topics.decisions), decisions)
    for table in RECORDED:
        sink.append(arrow_table(table.row, [one.row for one in rows[table.name]]), warehouse / table.name)


def test_records_that_kafka_had_deleted_are_a_gap_on_record(tmp_path):
    create_tables(tmp_path)
    story, cut = a_day(), Story()
    groups = [row for row in story.rows if row[0] == Topics().groups and row[1] == 0]
    gone = groups[3:6]
    cut.rows = [row for row in story.rows if row not in gone]
    append(tmp_path, cut, Chains(tmp_path))

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        gaps = [line for line in chain_of(ledger, EVENTS).lines if line.kind == "gap"]
    assert [(gap.positions, gap.rows) for gap in gaps] == [({f"{Topics().groups}-0": gone[-1][2]}, 3)]
    assert gaps[0].reason == "not in Kafka's log when it was recorded"


def test_numbers_of_decisions_in_several_partitions_are_no_gap(tmp_path):
    """A decision without a group has the shard as its key, and a shard that was split off goes on with its numbers."""
    create_tables(tmp_path)
    story, chains = a_day(), Chains(tmp_path)
    decisions = [row for row in story.rows if row[0] == Topics().decisions and row[1] == 1]
    moved, late = decisions[4], decisions[:3]
    story.rows = [(row[0], 3, *row[2:]) if row is moved else row for row in story.rows if row not in late]
    append(tmp_path, story, chains)

    assert broken(tmp_path) == []
    with duck_ledger(tmp_path) as ledger:
        assert {line.kind for line in chain_of(ledger, DECISIONS).lines} == {"begin", "rows"}


def test_decisions_that_kafka_had_deleted_are_a_gap_on_record(tmp_path):
    create_tables(tmp_path)
    story = a_day()
    decisions = [row for row in story.rows if row[0] == Topics().decisions and row[1] == 1]
    story.rows = [row for row in story.rows if row not in decisions[4:6]]
    append(tmp_path, story, Chains(tmp_path))

    with duck_ledger(tmp_path) as ledger:
        gaps = [line.rows for line in chain_of(ledger, DECISIONS).lines if line.kind == "gap"]
    assert gaps == [2]


def test_the_published_lines_prove_a_copy(sound, warehouse):
    with duck_ledger(sound) as ledger:
        heads = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    text = text_of_heads(heads)

    assert broken(warehouse, heads_of_text(text)) == []


def test_a_history_that_was_written_anew_differs_from_the_published_line(sound, tmp_path):
    """Its own chain is sound: only a line that was kept elsewhere shows it."""
    with duck_ledger(sound) as ledger:
        heads = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    create_tables(tmp_path)
    story = a_day()
    story.rows = [row for row in story.rows if row[2] != 7 or row[0] == Topics().decisions]
    append(tmp_path, story, Chains(tmp_path))

    assert broken(tmp_path) == []
    assert ("events.chain", f"line {heads[2].number}") in {
        (rule, at) for rule, at, *_ in broken(tmp_path, heads)
    } or any(rule == "events.chain" for rule, *_ in broken(tmp_path, heads))


def delete(warehouse: Path, table: Table, condition: str) -> None:
    DeltaTable(warehouse / table.name).delete(condition)


def test_what_a_retention_leaves_is_proven_too(warehouse):
    """It deletes rows in the middle of lines: of the records up to 60, and the decisions but a few."""
    chains, append_rows = Chains(warehouse), ArrowSink().append
    ends = {f"{Topics().groups}-{partition}": 60 for partition in range(8)}
    with chains.rewriting(EVENTS, ends, "older than the retention", append_rows):
        delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and offset <= 60")
    shards = {row["shard"]: row["partition"] for row in rows_in(warehouse, DECISIONS).to_pylist()}
    with chains.rewriting(DECISIONS, {f"{shard}@{at}": 40 for shard, at in shards.items()}, "old", append_rows):
        delete(warehouse, DECISIONS, "seq <= 40 and seq % 7 <> 0")

    newest = max(rows_in(warehouse, DECISIONS)["seq"].to_pylist())
    assert broken(warehouse) == []
    kept = [
        (line.table, line.kind, line.reason)
        for line in gathered_lines(warehouse, "kind in ('cut', 'kept') order by table_name desc, number")
    ]
    assert kept == [
        ("events", "cut", "older than the retention"),
        ("events", "kept", ""),
        ("decisions", "cut", "old"),
        ("decisions", "kept", ""),
    ]
    for table, condition in (
        (EVENTS, "offset = 61"),
        (DECISIONS, "seq = 7"),
        (DECISIONS, f"seq = {newest}"),
        (EVENTS, "offset = 100"),
    ):
        version = DeltaTable(warehouse / table.name).version()
        delete(warehouse, table, condition)
        assert {rule for rule, *_ in broken(warehouse)} == {f"{table.name}.chain"}, condition
        DeltaTable(warehouse / table.name).restore(version)


def test_a_deletion_that_was_interrupted_is_not_proven_until_it_is_finished(warehouse):
    chains, append_rows = Chains(warehouse), ArrowSink().append

    def interrupted() -> None:
        with chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "old", append_rows):
            delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= 30")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert broken(warehouse) == []
    delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= 60")
    assert broken(warehouse) == [], "nobody knows what the deletion should leave"
    assert "not proven until `run` has finished a deletion" in skipped(warehouse, EVENTS)

    again = Chains(warehouse)
    again.finish(EVENTS, append_rows)
    assert (broken(warehouse), skipped(warehouse, EVENTS)) == ([], "")
    delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 1 and offset <= 5")
    assert {rule for rule, *_ in broken(warehouse)} == {"events.chain"}


def skipped(warehouse: Path, table: Table) -> str:
    check = ChainCheck()
    with duck_ledger(warehouse) as ledger:
        assert [*check.broken(ledger, table)] == []
    return check.skipped.get(f"{table.name}.chain", "")


def test_a_later_retention_follows_an_earlier_one(warehouse):
    chains, append_rows = Chains(warehouse), ArrowSink().append
    for last in (20, 60, 61, 100):
        with chains.rewriting(EVENTS, {f"{Topics().groups}-0": last}, "old", append_rows):
            delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= {last}")
        assert broken(warehouse) == []
    append(warehouse, _later(warehouse), chains)
    assert broken(warehouse) == []


def _later(warehouse: Path) -> Story:
    """Ticks behind the records of a ledger."""
    story = Story()
    rows = rows_in(warehouse, EVENTS).to_pylist()
    last = max(row["offset"] for row in rows if (row["topic"], row["partition"]) == (Topics().groups, 0))
    story.rows = [(Topics().groups, 0, last + number, story.now_ms, None, b'{"type":"tick"}') for number in (1, 2, 3)]
    return story


def test_the_figures_of_prometheus_prove_a_copy_too(sound, warehouse):
    """An operator prints them as `docs/quality.md` shows: `printf 'events:%d:%013x' NUMBER HASH`."""
    with duck_ledger(sound) as ledger:
        heads = [head for table in RECORDED if (head := chain_of(ledger, table).head)]
    figures = [(head.table, float(head.number), float(head.first_bits)) for head in heads]
    text = ",".join(f"{table}:{number:.0f}:{int(first_bits):013x}" for table, number, first_bits in figures)
    assert len(text) < len(text_of_heads(heads)) / 2
    [first, *_] = heads_of_text(text)

    assert broken(warehouse, heads_of_text(text)) == []
    other = Head(first.table, first.number, f"{first.first_bits ^ 1:013x}")
    assert [one[:2] for one in broken(warehouse, [other])] == [(f"{first.table}.chain", f"line {first.number}")]
    assert broken(warehouse, [Head(first.table, first.number + 1, first.line_hash)])[0][2] == "no such line"


def test_only_stored_lines_are_published(warehouse):
    """A line of a process that dies before it is stored is never in the chain: the next process has another one."""
    chains = Chains(warehouse)
    chains.begin()
    before = {head.table: head for head in chains.heads()}

    def fails(_rows: pa.Table, _place: Place) -> None:
        raise OSError("no space left")

    with (
        pytest.raises(OSError, match="no space"),
        chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "old", fails),
    ):
        raise AssertionError("the cut is not on record")
    assert {head.table: head for head in chains.heads()} == before
    again = Chains(warehouse)
    again.begin()
    assert {head.table: head for head in again.heads()} == before

    with chains.rewriting(EVENTS, {f"{Topics().groups}-0": 60}, "old", ArrowSink().append):
        delete(warehouse, EVENTS, f"topic = '{Topics().groups}' and partition = 0 and offset <= 60")
    after = {head.table: head for head in chains.heads()}
    assert after["events"].number == before["events"].number + 3, "both cuts, and what is kept"
    assert broken(warehouse, chains.heads()) == []


@pytest.mark.parametrize(
    "text",
    ["", "events", "events:x:" + "0" * 64, "events:1:" + "g" * 64, "events:1:" + "0" * 12, "events:1:" + "0" * 65],
)
def test_a_text_that_is_no_line_is_refused(text):
    with pytest.raises(ValueError, match="TABLE:NUMBER:HASH"):
        heads_of_text(text)


def lines(count: int) -> Iterator[Line]:
    before = ""
    for number in range(1, count + 1):
        line = Line(
            table="events", number=number, kind="rows", at_ms=number, rows=1, positions={"a": number}, rows_hash="x"
        )
        yield (line := linked(line, before))
        before = line.line_hash


def test_each_line_proves_the_one_before():
    sound = [*lines(4)]
    edited = [*sound]
    edited[1] = Line(**{name: getattr(sound[1], name) for name in Line.__struct_fields__} | {"rows": 2})

    assert [*broken_links(sound)] == []
    assert [one.number for one in broken_links(edited)] == [2]
    assert [one.number for one in broken_links([sound[0], *sound[2:]])] == [3]
    assert [one.number for one in broken_links(sound[1:])] == [2]


def test_the_hash_of_rows_does_not_depend_on_how_they_were_appended(sound):
    rows = rows_in(sound, DECISIONS)
    shuffled = rows.take(pa.array([*reversed(range(len(rows)))]))

    assert hash_of_rows(parts_of(rows, DECISIONS)) == hash_of_rows(parts_of(shuffled, DECISIONS))


def test_the_metadata_of_a_commit_has_its_line(sound):
    newest = DeltaTable(sound / EVENTS.name).history(1)[0]

    assert '"table":"events"' in newest[METADATA]
