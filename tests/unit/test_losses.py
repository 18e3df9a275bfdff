"""Rows that cannot be had again are recorded as lost: readers say so, and what is lost later is still found."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from html import unescape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jsonschema
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from prometheus_client import CollectorRegistry

from tests.support.chained_ledgers import append, append_snapshots, create_tables
from tests.support.ledgers import PARTITIONS, a_day
from tests.support.systems.web_site import answering
from wakeroll.connection import Topics
from wakeroll_model.rows import ASSIGNMENTS, DECISIONS, EVENTS, OFFSETS, SNAPSHOTS, Table
from wakeroll_pipeline.cli.answer_schemas import answer_schemas
from wakeroll_pipeline.cli.app import run_app
from wakeroll_pipeline.ledger.arrow_schemas import arrow_schema_of
from wakeroll_pipeline.ledger.chains import Chains, gathered_lines
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.questions.missing_history import missing_history
from wakeroll_pipeline.serve.history import History
from wakeroll_pipeline.serve.web_app import WebApp
from wakeroll_pipeline.settings import Settings
from wakeroll_pipeline.sinks.arrow_sink import ArrowSink

Row = dict[str, Any]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home whose tables have their chain."""
    settings = Settings(home=str(tmp_path_factory.mktemp("sound")), partitions=PARTITIONS)
    warehouse = Path(str(settings.warehouse))
    create_tables(warehouse)
    chains, story = Chains(warehouse), a_day()
    append(warehouse, story, chains)
    append_snapshots(warehouse, story, chains)
    chains.gather(ArrowSink().append)
    return settings


@pytest.fixture
def home(sound: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to damage."""
    monkeypatch.setenv("WAKEROLL_PARTITIONS", str(PARTITIONS))
    return Path(shutil.copytree(sound.home, tmp_path / "home"))


def folder(home: Path, table: Table) -> Path:
    return Path(str(Settings(home=str(home)).warehouse / table.name))


def rows_in(home: Path, table: Table) -> list[Row]:
    found: list[Row] = DeltaTable(folder(home, table)).to_pyarrow_table().to_pylist()
    return found


def change(home: Path, table: Table, edit: Callable[[Row], Row | None]) -> None:
    left = [row for one in rows_in(home, table) if (row := edit(one)) is not None]
    write_deltalake(folder(home, table), pa.Table.from_pylist(left, arrow_schema_of(table.row)), mode="overwrite")


def delete(home: Path, table: Table, wrong: Callable[[Row], bool]) -> None:
    before = len(rows_in(home, table))
    change(home, table, lambda row: None if wrong(row) else row)
    assert len(rows_in(home, table)) < before, "the story has such rows"


def run(*arguments: str) -> object:
    """Run a command; return its exit code."""
    try:
        return run_app(arguments)
    except SystemExit as end:
        return end.code


def check(home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[object, dict[str, str], dict[str, str]]:
    """Return the exit code, the broken rules, and rule -> why it is skipped."""
    capsys.readouterr()
    code = run("check", "--no-docs", "--json", "--home", str(home))
    rules = json.loads(capsys.readouterr().out)["rules"]
    broken = {one["name"]: str(one["rows"]) for one in rules if one["status"] == "broken"}
    return code, broken, {one["name"]: one["reason"] for one in rules if one["status"] == "skipped"}


def repaired(home: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return the answer of `repair --json`, which asks nothing."""
    capsys.readouterr()
    code = run("repair", "--home", str(home), "--json", *words)
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, answer_schemas()["repair.json"])
    assert answer["exit_code"] == code
    return answer


def of_shard(partition: int, *offsets: int) -> Callable[[Row], bool]:
    return lambda row: (
        (row["topic"].endswith(".groups"), row["partition"]) == (True, partition) and (row["offset"] in offsets)
    )


def busiest(home: Path) -> int:
    """Return the partition of the group with most records."""
    places = [row["partition"] for row in rows_in(home, EVENTS) if row["topic"].endswith(".groups")]
    return max(set(places), key=places.count)


def test_lost_records_are_on_record(home, capsys):
    """Kafka does not have them any more; no broker is named here."""
    place = busiest(home)
    delete(home, EVENTS, of_shard(place, 4, 5))
    code, broken, _ = check(home, capsys)
    assert code == 1
    assert {"events.chain", "events.offsets"} <= broken.keys()

    capsys.readouterr()
    answer = repaired(home, capsys)
    assert (answer["exit_code"], answer["is_executed"], answer["left"]) == (1, True, 2)
    assert [(one["table"], one["first"], one["last"], one["source"]) for one in answer["findings"]] == [
        ("events", 4, 5, "")
    ]
    assert run("repair", "--home", str(home), "--yes") == 1
    said = capsys.readouterr().out
    assert f"events of wakeroll.groups-{place}, 4 to 5: 2 rows missing, cannot be had again" in said
    assert "repeat the command with --accept-losses" in said
    assert check(home, capsys)[0] == 1, "nothing was accepted"
    assert run("repair", "--home", str(home), "--accept-losses") == 0
    assert "2 rows are lost, and on record from now on" in capsys.readouterr().out

    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    for rule in ("events.chain", "events.offsets", "decisions.caused"):
        assert f"events of wakeroll.groups-{place}, 4 to 5: missing on record since" in skipped[rule]
    capsys.readouterr()
    assert run("replay", "--home", str(home)) == 0
    assert "missing on record since" in capsys.readouterr().out
    assert run("repair", "--home", str(home)) == 0
    said = capsys.readouterr().out
    assert "missing on record since" in said
    assert "nothing to repair" in said


@pytest.mark.operate
def test_a_later_loss_beside_a_recorded_one_is_found(home, capsys):
    place = busiest(home)
    delete(home, EVENTS, of_shard(place, 4, 5))
    assert run("repair", "--home", str(home), "--accept-losses") == 0

    delete(home, EVENTS, of_shard(place, 6))

    code, broken, _ = check(home, capsys)
    assert code == 1
    assert {"events.chain", "events.offsets"} <= broken.keys()
    assert run("repair", "--home", str(home), "--accept-losses") == 0
    assert check(home, capsys)[:2] == (0, {})


def test_the_last_records_are_known_by_the_chain(home, capsys):
    """No other rule knows that they are missing."""
    place = busiest(home)
    last = max(row["offset"] for row in rows_in(home, EVENTS) if of_shard(place, row["offset"])(row))
    delete(home, EVENTS, of_shard(place, last))

    assert run("repair", "--home", str(home), "--accept-losses") == 0

    assert f"events of wakeroll.groups-{place}, {last}: 1 row missing" in capsys.readouterr().out
    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    assert f"{last}: missing on record" in skipped["events.chain"]


def test_an_edited_record_is_accepted_by_its_line(home, capsys):
    """Which row of a line was edited is not known; nothing else in the table is accepted with it."""
    place = busiest(home)
    change(home, EVENTS, lambda row: row | {"at_ms": row["at_ms"] + 1} if of_shard(place, 7)(row) else row)
    assert check(home, capsys)[1].keys() == {"events.chain"}

    assert run("repair", "--home", str(home)) == 1
    assert "rows of which one or more were edited" in capsys.readouterr().out
    assert run("repair", "--home", str(home), "--accept-losses") == 0

    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    assert "one or more were edited (accepted at" in skipped["events.chain"]
    change(home, EVENTS, lambda row: row | {"at_ms": row["at_ms"] + 1} if of_shard(place, 8)(row) else row)
    assert check(home, capsys)[1].keys() == {"events.chain"}


def lose_decisions(home: Path) -> tuple[str, int, int]:
    """Delete a record and the decisions about it and the next ones, with their rows; return their shard and numbers."""
    place = busiest(home)
    its = sorted(
        (row for row in rows_in(home, DECISIONS) if row["shard"] == f"groups-{place}.1"), key=lambda row: row["seq"]
    )
    lost = its[3:6]
    shard, first, last = its[0]["shard"], lost[0]["seq"], lost[-1]["seq"]
    delete(home, EVENTS, of_shard(place, *(row["cause"]["offset"] for row in lost)))
    delete(home, DECISIONS, lambda row: row["shard"] == shard and first <= row["seq"] <= last)
    for table in (ASSIGNMENTS, OFFSETS):
        change(home, table, lambda row: None if row["shard"] == shard and first <= row["seq"] <= last else row)
    return shard, first, last


def test_lost_decisions_are_on_record(home, capsys):
    """Their records are lost too, so a replay does not make them again."""
    shard, first, last = lose_decisions(home)
    code, broken, _ = check(home, capsys)
    assert code == 1
    assert {"decisions.chain", "decisions.numbering"} <= broken.keys()

    assert run("repair", "--home", str(home), "--accept-losses") == 0
    assert f"decisions of {shard}, {first} to {last}: 3 rows missing" in capsys.readouterr().out

    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    for rule in ("decisions.chain", "decisions.numbering", "decisions.ownership"):
        assert f"decisions of {shard}, {first} to {last}: missing on record" in skipped[rule]
    assert run("replay", "--home", str(home)) == 0
    delete(home, DECISIONS, lambda row: (row["shard"], row["seq"]) == (shard, last + 1))
    code, broken, _ = check(home, capsys)
    assert {"decisions.chain", "decisions.numbering"} <= broken.keys()


@pytest.mark.operate
def test_a_damaged_snapshot_that_no_replay_makes_is_on_record(home, capsys):
    lose_decisions(home)
    oldest = min(row["offset"] for row in rows_in(home, SNAPSHOTS) if of_shard(busiest(home), row["offset"])(row))
    wrong = of_shard(busiest(home), oldest)
    change(home, SNAPSHOTS, lambda row: row | {"body": row["body"][:-1]} if wrong(row) else row)
    assert "snapshots.hash" in check(home, capsys)[1]

    assert run("repair", "--home", str(home), "--accept-losses") == 0

    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    assert f"{oldest}: missing on record" in skipped["snapshots.hash"]
    assert run("replay", "--home", str(home)) == 0


def site_of(warehouse: Path) -> AbstractContextManager[str]:
    source, history = ViewSource(read_ledger(warehouse, Topics(), PARTITIONS)), History(warehouse, Topics(), PARTITIONS)
    return answering(WebApp(source, CollectorRegistry(), ["127.0.0.1"], history=history))


def test_a_history_says_that_it_has_a_gap(home, capsys):
    """An owner may have changed in it, or a member have joined."""
    shard, first, last = lose_decisions(home)
    assert run("repair", "--home", str(home), "--accept-losses") == 0
    [group, *_] = {row["group_id"] for row in rows_in(home, DECISIONS) if row["shard"] == shard and row["group_id"]}
    [row, *_] = [one for one in rows_in(home, ASSIGNMENTS) if one["group_id"] == group]
    queue = f"{row['topic']}-{row['queue_id']}"
    says = f"decisions of {shard}, {first} to {last}: missing on record since"

    capsys.readouterr()
    assert run("explain", "--home", str(home), "--group", group, "--queue", queue) == 0
    assert f"this history has a gap: {says}" in capsys.readouterr().out
    warehouse = folder(home, EVENTS).parent
    with site_of(warehouse) as site:
        for page in (f"/groups/{group}/why?queue={queue}", f"/groups/{group}/happened", "/happened"):
            with urlopen(site + page, timeout=60) as answer:
                assert f"This history has a gap: {says}" in unescape(answer.read().decode()), page


def test_a_history_before_the_gap_says_nothing_of_it(home):
    shard, first, _ = lose_decisions(home)
    assert run("repair", "--home", str(home), "--accept-losses") == 0
    [before] = [row["at_ms"] for row in rows_in(home, DECISIONS) if (row["shard"], row["seq"]) == (shard, first - 1)]

    with duck_ledger(folder(home, EVENTS).parent) as ledger:
        assert missing_history(ledger, to_ms=before - 1) == []
        assert len(missing_history(ledger, from_ms=before)) == 2, "records and decisions"


@pytest.mark.operate
def test_the_data_docs_say_what_is_missing(home, tmp_path):
    place = busiest(home)
    delete(home, EVENTS, of_shard(place, 4, 5))
    assert run("repair", "--home", str(home), "--accept-losses") == 0

    assert run("check", "--home", str(home), "--docs", str(tmp_path / "docs")) == 0

    [page] = (tmp_path / "docs").rglob("data_docs/**/validations/history/**/*.html")
    assert f"events of wakeroll.groups-{place}, 4 to 5: missing on record since" in page.read_text(encoding="utf-8")
    results = [json.loads(file.read_text(encoding="utf-8")) for file in (tmp_path / "docs").rglob("*.json")]
    assert all(one["success"] for one in results if "success" in one)


def edited(wrong: Callable[[Row], bool]) -> Callable[[Row], Row]:
    return lambda row: row | {"published_ms": row["published_ms"] + 1} if wrong(row) else row


def numbers(home: Path, shard: str) -> list[int]:
    return sorted(row["seq"] for row in rows_in(home, DECISIONS) if row["shard"] == shard)


@pytest.mark.operate
def test_a_repair_by_replay_does_not_prove_rows_that_it_did_not_make(home, capsys):
    """The hash of the kept rows would say that the edited one was always like that."""
    shard = f"groups-{busiest(home)}.1"
    first, second, *_, last = numbers(home, shard)
    change(home, DECISIONS, edited(lambda row: (row["shard"], row["seq"]) == (shard, first)))
    delete(home, DECISIONS, lambda row: (row["shard"], row["seq"]) == (shard, last - 1))
    assert "decisions.chain" in check(home, capsys)[1]

    assert run("repair", "--home", str(home), "--yes") == 1
    assert "decisions was not repaired: other rows of it differ" in capsys.readouterr().out
    assert last - 1 not in numbers(home, shard)
    assert run("repair", "--home", str(home), "--yes", "--accept-losses") == 0

    code, broken, skipped = check(home, capsys)
    assert (code, broken) == (0, {})
    assert "one or more were edited" in skipped["decisions.chain"]
    assert last - 1 in numbers(home, shard)
    change(home, DECISIONS, edited(lambda row: (row["shard"], row["seq"]) == (shard, second)))
    assert check(home, capsys)[1].keys() == {"decisions.chain"}


def test_an_edited_decision_that_was_accepted_is_on_record_in_a_replay(home, capsys):
    """Otherwise a replay would end with 1 for ever, and a new difference would be one of many."""
    shard = f"groups-{busiest(home)}.1"
    first, *_, last = [row["seq"] for row in rows_in(home, DECISIONS) if row["shard"] == shard]

    def longer(row: Row) -> Row:
        return row | {"json": row["json"][:-1] + " }"}

    change(home, DECISIONS, lambda row: longer(row) if (row["shard"], row["seq"]) == (shard, first) else row)
    assert run("replay", "--home", str(home)) == 1
    assert run("repair", "--home", str(home), "--yes", "--accept-losses") == 0
    capsys.readouterr()

    assert run("replay", "--home", str(home)) == 0
    assert f"{shard}: 1 decisions differ from those of the replay on record" in capsys.readouterr().out
    assert run("replay", "--json", "--home", str(home)) == 0
    shards = json.loads(capsys.readouterr().out)["shards"]
    assert sum(one["edited"] for one in shards) == 1
    assert sum(one["differences"] for one in shards) == 0
    # A later line is not accepted with it.
    change(home, DECISIONS, lambda row: longer(row) if (row["shard"], row["seq"]) == (shard, last) else row)
    assert run("replay", "--home", str(home)) == 1


@pytest.mark.operate
def test_a_repair_by_replay_leaves_later_lines_as_they_are(home, capsys):
    """They prove their rows as before, also if somebody kept a line from the time before the repair."""
    shard = f"groups-{busiest(home)}.1"
    delete(home, DECISIONS, lambda row: (row["shard"], row["seq"]) == (shard, numbers(home, shard)[1]))
    before = gathered_lines(folder(home, DECISIONS).parent, "table_name = 'decisions'")

    assert run("repair", "--home", str(home), "--yes") == 0

    after = gathered_lines(folder(home, DECISIONS).parent, "table_name = 'decisions'")
    [cut] = [line for line in after if line.kind == "cut"]
    behind = [line for line in before if any(end > cut.positions.get(its, -1) for its, end in line.positions.items())]
    assert behind, "the cut reaches to the line of the repaired rows only"
    assert check(home, capsys)[:2] == (0, {})


def double(home: Path, table: Table, wrong: Callable[[Row], bool], edit: Callable[[Row], Row]) -> None:
    rows = [edit(row) for row in rows_in(home, table) if wrong(row)]
    write_deltalake(folder(home, table), pa.Table.from_pylist(rows, arrow_schema_of(table.row)), mode="append")


def as_they_are(home: Path) -> list[list[str]]:
    return [sorted(map(str, rows_in(home, table))) for table in (EVENTS, DECISIONS)]


@pytest.mark.parametrize("is_edited", [False, True], ids=["equal", "differing"])
def test_doubled_records_and_decisions_are_there_once(home, capsys, is_edited):
    """Of rows that differ, the chain knows the original one."""
    before, place = as_they_are(home), busiest(home)
    shard = f"groups-{place}.1"
    numbers_there = numbers(home, shard)

    def edit(row: Row) -> Row:
        return row | {name: row[name] + 1 for name in ("at_ms",) if is_edited}

    double(home, EVENTS, of_shard(place, 3, 7), edit)
    double(home, DECISIONS, lambda row: (row["shard"], row["seq"]) == (shard, numbers_there[-1]), edit)
    assert {"events.chain", "decisions.chain"} <= check(home, capsys)[1].keys()

    assert run("repair", "--home", str(home), "--yes") == 0

    source = "the row that the chain proves" if is_edited else "a row that equals them"
    assert f"events of wakeroll.groups-{place}, 3: 1 row doubled, made again from {source}" in capsys.readouterr().out
    assert as_they_are(home) == before
    assert check(home, capsys)[:2] == (0, {})


def test_a_deleted_snapshot_is_made_again(home, capsys):
    """The chain knows that it was there; a replay has its state in hand."""
    place = busiest(home)
    before = rows_in(home, SNAPSHOTS)
    newest = max(row["offset"] for row in before if of_shard(place, row["offset"])(row))
    delete(home, SNAPSHOTS, of_shard(place, newest))
    assert check(home, capsys)[1].keys() == {"snapshots.chain"}
    planned = repaired(home, capsys)
    assert (planned["exit_code"], planned["is_executed"]) == (1, False)
    assert planned["changes"] == [{"table": "snapshots", "deleted": 0, "appended": 1}]
    assert check(home, capsys)[1].keys() == {"snapshots.chain"}, "it was only planned"

    assert run("repair", "--home", str(home), "--yes") == 0

    said = capsys.readouterr().out
    assert f"snapshots of groups-{place}.1, {newest}: 1 row missing, made again from a replay of events" in said
    keys = [[tuple(row[name] for name in SNAPSHOTS.key) for row in rows] for rows in (rows_in(home, SNAPSHOTS), before)]
    assert sorted(keys[0]) == sorted(keys[1])
    assert check(home, capsys)[:2] == (0, {})
    assert run("replay", "--home", str(home)) == 0
    assert f"{len(before)} snapshots compared with the state of the replay: equal" in capsys.readouterr().out
