"""The kinds of damage of a ledger, and what `check` and `replay` say about each.

The ledger is that of the fixture `sound` in `tests/sql/conftest.py`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.support.damaged_tables import DAMAGES, add_a_column
from wakeroll_model.chain import Line, hash_of_rows, linked
from wakeroll_model.rows import CHAINED, RECORDED, TABLES, ChainRow, SnapshotRow
from wakeroll_model.snapshot_proof import hash_of
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of, arrow_table
from wakeroll_pipeline.ledger.chains import gathered_lines, row_of
from wakeroll_pipeline.ledger.row_hashes import parts_of

DAY_MS = 86_400_000

Row = dict[str, Any]
Test = Callable[[Row], bool]


def rows_in(warehouse: Path, table: str) -> list[Row]:
    """Return the rows of a table, sorted by key."""
    rows: list[Row] = DeltaTable(warehouse / table).to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda row: [row[name] for name in TABLES[table].key])


def put(warehouse: Path, table: str, rows: Iterable[Row]) -> None:
    """Replace all rows."""
    schema = arrow_schema_of(TABLES[table].row)
    write_deltalake(warehouse / table, pa.Table.from_pylist([*rows], schema=schema), mode="overwrite")


def keep(table: str, choose: Callable[[list[Row]], list[Row]]) -> Callable[[Path], None]:
    return lambda warehouse: put(warehouse, table, choose(rows_in(warehouse, table)))


def lose(table: str, is_it: Test) -> Callable[[Path], None]:
    """Delete all rows that pass a test; there must be one."""

    def damage(warehouse: Path) -> None:
        rows = rows_in(warehouse, table)
        left = [row for row in rows if not is_it(row)]
        assert len(left) < len(rows), "nothing was deleted"
        put(warehouse, table, left)

    return damage


def edit(table: str, is_it: Test, change: Callable[[Row], Row], most: int = 1) -> Callable[[Path], None]:
    """Change the first rows that pass a test; there must be one."""

    def damage(warehouse: Path) -> None:
        rows = rows_in(warehouse, table)
        places = [place for place, row in enumerate(rows) if is_it(row)][:most]
        for place in places:
            changed = rows[place] | change(rows[place])
            assert changed != rows[place], "nothing was changed"
            rows[place] = changed
        assert places, "no such row"
        put(warehouse, table, rows)

    return damage


def with_values(**values: object) -> Callable[[Row], Row]:
    return lambda _row: values


def plus(column: str, much: int) -> Callable[[Row], Row]:
    return lambda row: {column: row[column] + much}


def with_said(**said: object) -> Callable[[Row], Row]:
    """Change fields of the JSON of a decision."""
    return lambda row: {"json": json.dumps(json.loads(row["json"]) | said, separators=(",", ":"))}


def any_row(_row: Row) -> bool:
    return True


def decided(shard: str, seq: int) -> Test:
    return lambda row: (row["shard"], row["seq"]) == (shard, seq)


def record(topic: str, partition: int, offset: int) -> Test:
    return lambda row: (row["topic"], row["partition"], row["offset"]) == (f"wakeroll.{topic}", partition, offset)


def of_kind(kind: str, shard: str = "") -> Test:
    return lambda row: row["kind"] == kind and row["shard"].startswith(shard)


def of_type(kind: str) -> Test:
    return lambda row: row["type"] == kind


def both(*damages: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(warehouse: Path) -> None:
        for one in damages:
            one(warehouse)

    return damage


def restore(*tables: str, back: int = 1) -> Callable[[Path], None]:
    """Restore tables to an older version."""

    def damage(warehouse: Path) -> None:
        for table in tables:
            delta = DeltaTable(warehouse / table)
            delta.restore(delta.version() - back)

    return damage


def uncommit(table: str, last: int = -1) -> Callable[[Path], None]:
    """Delete the newest commits with their checksums: all behind a version; -1: the newest one."""

    def damage(warehouse: Path) -> None:
        version = DeltaTable(warehouse / table).version()
        for number in range(last + 1 if last >= 0 else version, version + 1):
            for kind in ("json", "crc"):
                (warehouse / table / "_delta_log" / f"{number:020}.{kind}").unlink(missing_ok=True)

    return damage


def put_an_older_copy(warehouse: Path) -> None:
    """Put all tables back to what they were before the last batch, the snapshots and the retention."""
    before = {"events": 5, "decisions": 4, "assignments": 4, "offsets": 3, "snapshots": 0, "chain": 0}
    for table, version in before.items():
        uncommit(table, version)(warehouse)


def append_again(table: str, change: Callable[[Row], Row], is_it: Test = any_row) -> Callable[[Path], None]:
    """Append a changed copy of the last row that passes a test."""

    def damage(warehouse: Path) -> None:
        row = [row for row in rows_in(warehouse, table) if is_it(row)][-1]
        schema = arrow_schema_of(TABLES[table].row)
        write_deltalake(warehouse / table, pa.Table.from_pylist([row | change(row)], schema=schema), mode="append")

    return damage


def exchange(table: str, column: str, one: Test, other: Test) -> Callable[[Path], None]:
    """Exchange the values of a column between two rows."""

    def damage(warehouse: Path) -> None:
        rows = rows_in(warehouse, table)
        first, second = (next(row for row in rows if test(row)) for test in (one, other))
        assert first[column] != second[column]
        first[column], second[column] = second[column], first[column]
        put(warehouse, table, rows)

    return damage


def on_file(what: str, table: str) -> Callable[[Path], str]:
    return lambda warehouse: DAMAGES[what](warehouse / table)


def rehashed(change: Callable[[Row], Row]) -> Callable[[Row], Row]:
    """Change a snapshot, and its hash with it."""

    def changed(row: Row) -> Row:
        new = row | change(row)
        return change(row) | {"row_hash": hash_of(SnapshotRow(**new))}

    return changed


def flipped(row: Row) -> Row:
    body = bytearray(row["body"])
    body[len(body) // 2] ^= 1
    return {"body": bytes(body)}


def as_a_forger(damage: Callable[[Path], object], *tables: str) -> Callable[[Path], None]:
    """Damage tables, and make their chains again, as somebody may who has read this program."""

    def forge(warehouse: Path) -> None:
        damage(warehouse)
        lines = {(one.table, one.number): one for one in gathered_lines(warehouse, "true")}
        for table in tables:
            rows = DeltaTable(warehouse / table).to_pyarrow_table()
            parts = [*parts_of(rows, TABLES[table])]
            newest = max(number for name, number in lines if name == table)
            line = Line(
                table=table,
                number=newest,
                kind="kept",
                at_ms=lines[table, newest].at_ms,
                rows=rows.num_rows,
                positions={part.stream: part.positions[-1] for part in parts},
                rows_hash=hash_of_rows(parts),
            )
            lines[table, newest] = linked(line, lines[table, newest - 1].line_hash)
        write_deltalake(warehouse / "chain", arrow_table(ChainRow, [*map(row_of, lines.values())]), mode="overwrite")

    return forge


class Kind(NamedTuple):
    """A kind of damage, and what is said about it."""

    damage: Callable[[Path], object]
    """Damages the tables in a folder; may return a part of the sentence that must name the file."""
    broken: Mapping[str, str] = {}
    """Broken rule -> where its first row is: a line of the chain, or a key. All rules for single columns of a table are
    one here; they have no place."""
    replay: int | None = None
    """Exit code of `replay`; None: it does not see the damage."""
    check: int = 1
    """Exit code of `check`."""
    is_published: bool = False
    """Whether only a line that somebody has kept elsewhere shows it (`check --against`)."""


def without(first: int = 0, last: int = 0) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: rows[first : len(rows) - last]


def without_middle(rows: list[Row]) -> list[Row]:
    return [*rows[: len(rows) // 2], *rows[len(rows) // 2 + 1 :]]


def doubled(rows: list[Row]) -> list[Row]:
    return [*rows, rows[len(rows) // 2]]


def emptied(_rows: list[Row]) -> list[Row]:
    return []


BILLING, STOCK = "groups-1.10", "groups-0.10"

LOST: Mapping[str, Kind] = {
    "events emptied": Kind(
        keep("events", emptied),
        {
            "decisions.caused": "groups-0.10/1",
            "decisions.numbering": "groups-1.10",
            "decisions.ownership": "groups-1.10",
            "decisions.telling": "groups-2.10",
            "events.chain": "line 9",
        },
        replay=3,
    ),
    "events without a record in the middle": Kind(
        keep("events", without_middle), {"events.chain": "line 7", "events.offsets": "wakeroll.groups/7/16"}
    ),
    "events without the last records of a partition": Kind(
        lose("events", lambda row: (row["topic"], row["partition"]) == ("wakeroll.groups", 1) and row["offset"] > 207),
        {"events.chain": "line 6"},
        replay=3,
    ),
    "events without a partition": Kind(
        lose("events", lambda row: row["partition"] == 2),
        {
            "decisions.caused": "groups-2.10/1",
            "decisions.numbering": "groups-2.10",
            "decisions.ownership": "groups-2.9",
            "decisions.telling": "groups-2.10",
            "events.chain": "line 9",
        },
        replay=3,
    ),
    "events without some ticks": Kind(
        lose("events", lambda row: row["type"] == "tick" and row["partition"] == 0 and 150 < row["offset"] < 160),
        {"events.chain": "line 6", "events.offsets": "wakeroll.groups/0/160"},
        replay=3,
    ),
    "events with a record twice": Kind(keep("events", doubled), {"events.key": "", "events.chain": "line 7"}),
    "decisions emptied": Kind(
        keep("decisions", emptied), {"decisions.chain": "line 8", "decisions.derived": "groups-0.10/10"}, replay=1
    ),
    "decisions without the last 25 rows": Kind(
        keep("decisions", without(last=25)),
        {"decisions.chain": "line 8", "decisions.derived": "groups-3.10/10"},
        replay=1,
    ),
    "decisions without a row in the middle": Kind(
        lose("decisions", decided(BILLING, 33)),
        {"decisions.chain": "line 6", "decisions.numbering": "groups-1.10"},
        replay=1,
    ),
    "decisions without a shard": Kind(
        lose("decisions", lambda row: row["shard"] == BILLING),
        {"decisions.chain": "line 8", "decisions.derived": "groups-1.10/2"},
        replay=1,
    ),
    "decisions without one that retention has kept": Kind(
        lose("decisions", decided(BILLING, 7)), {"decisions.chain": "line 8"}
    ),
    "decisions with a row twice": Kind(keep("decisions", doubled), {"decisions.key": "", "decisions.chain": "line 8"}),
    "assignments emptied": Kind(
        keep("assignments", emptied), {"assignments.chain": "line 8", "assignments.decided": "groups-0.10/3"}
    ),
    "assignments without the first row": Kind(
        keep("assignments", without(first=1)), {"assignments.chain": "line 5", "assignments.decided": "groups-0.10/3"}
    ),
    "assignments without the last row": Kind(
        keep("assignments", without(last=1)), {"assignments.chain": "line 8", "assignments.decided": "groups-3.9/10"}
    ),
    "offsets emptied": Kind(keep("offsets", emptied), {"offsets.chain": "line 7", "offsets.decided": "groups-0.10/10"}),
    "offsets without the first row": Kind(
        keep("offsets", without(first=1)), {"offsets.chain": "line 4", "offsets.decided": "groups-0.10/10"}
    ),
    "offsets without the last batch": Kind(
        lose("offsets", lambda row: row["shard"] == "groups-4.10"),
        {"offsets.chain": "line 5", "offsets.decided": "groups-4.10/19"},
    ),
    "offsets without the reset": Kind(
        lose("offsets", lambda row: row["reset_by"] is not None),
        {"offsets.chain": "line 4", "offsets.decided": "groups-0.10/17"},
    ),
    "snapshots emptied": Kind(keep("snapshots", emptied), {"snapshots.chain": "line 4"}, replay=3),
    "snapshots without the first states of the new shards": Kind(
        lose("snapshots", lambda row: row["partition"] > 3 and row["offset"] == -1),
        {"snapshots.chain": "line 4"},
        replay=3,
    ),
}
"""Rows that are missing, or there twice."""

EDITED: Mapping[str, Kind] = {
    "events.type of a heartbeat": Kind(
        edit("events", of_type("heartbeat"), with_values(type="tick")),
        {"events.chain": "line 6", "events.typed": "wakeroll.groups/0/144"},
    ),
    "events.at_ms: the clock is put back": Kind(
        edit("events", record("groups", 1, 200), plus("at_ms", -DAY_MS)), {"events.chain": "line 6"}, replay=1
    ),
    "events.at_ms of all records an hour later": Kind(
        edit("events", any_row, plus("at_ms", 3_600_000), most=10_000),
        {"decisions.published": "groups-0.10/1", "events.chain": "line 9"},
        replay=1,
    ),
    "events.key from null to empty": Kind(
        edit("events", of_type("tick"), with_values(key=b"")), {"events.chain": "line 9"}, replay=1
    ),
    "events.value: another offset is committed": Kind(
        edit("events", of_type("commit"), lambda row: {"value": row["value"].replace(b'"offset":30', b'"offset":31')}),
        {"events.chain": "line 6"},
        replay=1,
    ),
    "events.offset": Kind(
        edit("events", record("groups", 5, 19), plus("offset", 1)),
        {"events.chain": "line 7", "events.offsets": "wakeroll.groups/5/20"},
    ),
    "decisions.json: a byte": Kind(
        edit("decisions", decided(BILLING, 31), lambda row: {"json": row["json"].replace("46000 ms", "46001 ms")}),
        {"decisions.chain": "line 6"},
        replay=1,
    ),
    "decisions.json: a member joins twice": Kind(
        edit("decisions", decided(BILLING, 31), with_said(change="joined", detail="")),
        {"decisions.chain": "line 6"},
        replay=1,
    ),
    "decisions.json: an epoch that jumps": Kind(
        edit("decisions", decided(BILLING, 33), with_said(epoch=38_654_705_771)),
        {"decisions.chain": "line 6", "decisions.epochs": "groups-1.10"},
        replay=1,
    ),
    "decisions.json: cut": Kind(
        edit("decisions", decided(BILLING, 32), lambda row: {"json": row["json"][:40]}),
        {"decisions.chain": "line 6", "decisions.json": "groups-1.10/32"},
        replay=1,
    ),
    "decisions.published_ms a day later": Kind(
        edit("decisions", decided(BILLING, 33), plus("published_ms", DAY_MS)),
        {"decisions.chain": "line 6", "decisions.published": "groups-1.10/33"},
    ),
    "decisions.published_ms a second later": Kind(
        edit("decisions", decided(BILLING, 33), plus("published_ms", 1_000)), {"decisions.chain": "line 6"}
    ),
    "decisions.client_id": Kind(
        edit("decisions", decided(BILLING, 31), with_values(client_id="c9")),
        {"decisions.chain": "line 6", "decisions.header": "groups-1.10/31"},
    ),
    "decisions.shard: another era": Kind(
        edit("decisions", decided(BILLING, 36), with_values(shard="groups-1.11")),
        {"decisions.chain": "line 6", "decisions.header": "groups-1.11/36"},
        replay=3,
    ),
    "assignments.client_id": Kind(
        edit("assignments", decided(BILLING, 34), with_values(client_id="c3")),
        {
            "assignments.chain": "line 6",
            "assignments.decided": "groups-1.10/34",
            "current_assignments.owners": "billing/orders//0",
        },
    ),
    "assignments.how": Kind(
        edit("assignments", decided(BILLING, 34), with_values(how="released")),
        {"assignments.chain": "line 6", "assignments.decided": "groups-1.10/34"},
    ),
    "a hand-over, in the decision and in its row": Kind(
        both(
            edit("decisions", decided(BILLING, 34), with_said(to="c1")),
            edit("assignments", decided(BILLING, 34), with_values(client_id="c1")),
        ),
        {"assignments.chain": "line 6", "decisions.chain": "line 6", "decisions.ownership": "groups-1.10"},
        replay=1,
    ),
    "offsets.committed_offset": Kind(
        edit("offsets", decided(STOCK, 10), plus("committed_offset", 1)),
        {"offsets.chain": "line 4", "offsets.decided": "groups-0.10/10"},
    ),
    "offsets.committed_offset of a row that retention has kept": Kind(
        edit("offsets", decided("groups-1.9", 26), plus("committed_offset", 1)),
        {"offsets.chain": "line 7", "offsets.decided": "groups-1.9/26"},
    ),
    "snapshots.offset": Kind(
        edit("snapshots", record("groups", 1, 232), plus("offset", 50)),
        {"snapshots.chain": "line 4", "snapshots.hash": "wakeroll.groups/1/10/282"},
    ),
    "snapshots.offset, with a new hash": Kind(
        edit("snapshots", record("groups", 1, 232), rehashed(plus("offset", -20))),
        {"snapshots.chain": "line 4"},
        replay=1,
    ),
    "snapshots.body: a bit": Kind(
        edit("snapshots", record("groups", 1, 232), flipped), {"snapshots.hash": "wakeroll.groups/1/10/232"}, replay=1
    ),
    "snapshots.body of zeros": Kind(
        edit("snapshots", record("groups", 1, 232), lambda row: {"body": bytes(len(row["body"]))}),
        {"snapshots.hash": "wakeroll.groups/1/10/232"},
        replay=1,
    ),
    "snapshots.body of another shard": Kind(
        exchange("snapshots", "body", record("groups", 1, 232), record("groups", 2, 202)),
        {"snapshots.hash": "wakeroll.groups/1/10/232"},
        replay=1,
    ),
    "snapshots.row_hash to null": Kind(
        edit("snapshots", record("groups", 1, 232), with_values(row_hash=None)), {"snapshots.chain": "line 4"}
    ),
}
"""Values that were changed."""

REWRITTEN: Mapping[str, Kind] = {
    "events restored to the version before": Kind(
        restore("events"),
        {
            "decisions.numbering": "groups-1.10",
            "decisions.ownership": "groups-1.10",
            "decisions.telling": "groups-2.10",
            "events.chain": "line 9",
        },
        replay=3,
    ),
    "decisions restored to the version before": Kind(
        restore("decisions"),
        {"assignments.decided": "groups-1.10/15", "decisions.chain": "line 8", "offsets.decided": "groups-1.10/18"},
    ),
    "assignments restored to the version before": Kind(restore("assignments"), {"assignments.chain": "line 8"}),
    "snapshots restored to the version before": Kind(restore("snapshots"), {"snapshots.chain": "line 4"}),
    "events without the newest commit": Kind(
        uncommit("events"),
        {
            "decisions.numbering": "groups-1.10",
            "decisions.ownership": "groups-1.10",
            "decisions.telling": "groups-2.10",
            "events.chain": "line 9",
        },
        replay=3,
    ),
    "decisions without the newest commit": Kind(
        uncommit("decisions"),
        {"assignments.decided": "groups-1.10/15", "decisions.chain": "line 8", "offsets.decided": "groups-1.10/18"},
    ),
    "snapshots without the newest commit": Kind(uncommit("snapshots"), {"snapshots.chain": "line 4"}),
    "all recorded tables restored to one moment": Kind(
        restore("events", "decisions", "assignments", "offsets", back=2),
        {
            "assignments.chain": "line 8",
            "decisions.chain": "line 8",
            "events.chain": "line 9",
            "offsets.chain": "line 7",
        },
        replay=3,
    ),
    "a record of a stranger behind the end": Kind(
        append_again("events", plus("offset", 5), of_type("tick")),
        {"events.chain": "wakeroll.queues-7", "events.offsets": "wakeroll.queues/7/24"},
    ),
    "a decision of a shard that decides nothing": Kind(
        append_again("decisions", with_values(shard="groups-6.10"), of_kind("rebalance")),
        {"decisions.chain": "groups-6.10@3", "decisions.header": "groups-6.10/7"},
    ),
    "an owner that nobody decided": Kind(
        append_again("assignments", plus("seq", 100)),
        {
            "assignments.chain": "groups-3.9@3",
            "assignments.ownership": "groups-3.9",
            "decisions.derived": "groups-3.9/110",
        },
    ),
    "a snapshot that nobody took": Kind(
        append_again("snapshots", rehashed(plus("offset", 1))), {"snapshots.chain": "wakeroll.queues-7.10"}
    ),
    "a line of the chain deleted": Kind(
        lose("chain", lambda row: (row["table_name"], row["number"]) == ("decisions", 4)), {"decisions.chain": "line 5"}
    ),
    "a line of the chain edited": Kind(
        edit("chain", lambda row: (row["table_name"], row["number"]) == ("decisions", 4), plus("rows", 1)),
        {"decisions.chain": "line 4"},
    ),
    "the chain emptied": Kind(
        keep("chain", emptied),
        {
            "assignments.chain": "line 2",
            "decisions.chain": "line 2",
            "events.chain": "line 2",
            "offsets.chain": "line 2",
            "snapshots.chain": "line 2",
        },
    ),
    "the chain restored to the version before": Kind(
        restore("chain"), {"snapshots.chain": "line 4"}, is_published=True
    ),
    "all tables as in an older copy": Kind(
        put_an_older_copy,
        {
            "assignments.chain": "line 8",
            "decisions.chain": "line 8",
            "events.chain": "line 9",
            "offsets.chain": "line 7",
            "snapshots.chain": "line 4",
        },
        replay=3,
        is_published=True,
    ),
    "a decision, its row and their chains, by somebody who has read this program": Kind(
        as_a_forger(
            both(
                edit("decisions", decided(STOCK, 15), with_said(offset=31)),
                edit("offsets", decided(STOCK, 15), with_values(committed_offset=31)),
            ),
            "decisions",
            "offsets",
        ),
        {"decisions.chain": "line 8", "offsets.chain": "line 7"},
        replay=1,
        is_published=True,
    ),
}
"""Versions, rows and lines that are not those of the recorder."""

ON_FILES: Mapping[str, Kind] = {
    "assignments: lose a file": Kind(on_file("lose a file", "assignments"), replay=3, check=3),
    "events: cut a file": Kind(on_file("cut a file", "events"), replay=3, check=3),
    "snapshots: zero a file": Kind(on_file("zero a file", "snapshots"), replay=3, check=3),
    "decisions: flip the footer": Kind(on_file("flip the footer", "decisions"), replay=3, check=3),
    "decisions: flip the pages": Kind(on_file("flip the pages", "decisions"), replay=3, check=3),
    "decisions: flip a commit": Kind(on_file("flip a commit", "decisions"), replay=3, check=3),
    "events: cut a checkpoint": Kind(on_file("cut a checkpoint", "events"), replay=3, check=3),
    "decisions: lose the log": Kind(on_file("lose the log", "decisions"), replay=3, check=3),
    "assignments: lose the table": Kind(on_file("lose the table", "assignments"), replay=3, check=3),
    "events: put another table": Kind(on_file("put another table", "events"), {"events.type": ""}, replay=3),
    "offsets: lose a column": Kind(on_file("lose a column", "offsets"), {"offsets.type": ""}, replay=3),
    "events: change a type": Kind(on_file("change a type", "events"), {"events.type": ""}, replay=3),
    "chain: lose a file": Kind(on_file("lose a file", "chain"), check=3),
}
"""Files that are missing or unreadable."""


def compact(warehouse: Path) -> None:
    for table in CHAINED:
        DeltaTable(warehouse / table.name).optimize.compact()


def widen(warehouse: Path) -> None:
    for table in RECORDED:
        add_a_column(warehouse / table.name)


HARMLESS: Mapping[str, Kind] = {
    "a column of a newer release": Kind(widen, check=0),
    "compaction": Kind(compact, check=0),
}
"""Changes that are no damage."""

KINDS: Mapping[str, Kind] = LOST | EDITED | REWRITTEN | ON_FILES | HARMLESS
