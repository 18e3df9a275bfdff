"""One view of a group: all commands that show groups agree, with each other and with the decisions on record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.earlier_states import without_facts
from tests.support.ledgers import Story, a_day, any_story, three_days
from wakeroll_model.snapshot_proof import proven
from wakeroll_pipeline.ledger import delta_files
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.stored_snapshots import row_of
from wakeroll_pipeline.live import earlier_rebalances
from wakeroll_pipeline.live.view_structs import GroupView

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path, wakeroll) -> Ask:
    """Return the JSON of a command that asks the tables of this test."""

    def ask(*words: str) -> dict[str, Any]:
        code, said, complaint = wakeroll(*words, "--json", "--home", str(tmp_path))
        assert (code, complaint) == (0, "")
        return json.loads(said)

    return ask


@pytest.mark.parametrize("seed", range(8))
def test_all_commands_that_show_groups_agree(tmp_path, ask, seed):
    """An operator who compares two of them at night must not have to find out which one is right."""
    write_tables(tmp_path / "warehouse", any_story(seed))
    listed = {one["group_id"]: one for one in ask("groups")["groups"]}
    watched = {one["group_id"]: one for one in ask("watch", "--once")["groups"]}
    lags = {one["group_id"]: one for one in ask("lag")["groups"]}
    states = ask("state")["members"]

    assert sorted(listed) == sorted(watched) == sorted({one["group_id"] for one in states})
    for group_id, row in listed.items():
        described, page = ask("describe", group_id), ask("watch", group_id, "--once")
        for name in set(GroupView.__struct_fields__) - {"health", "queues", "rebalances", "rebalances_from_ms"}:
            assert described[name] == page[name], name
        assert [{**one, "client_id": one["owner"] or None} for one in page["queues"]] == described["queues"]
        assert described["rebalances"][: len(page["rebalances"])] == page["rebalances"]
        assert page["summary"] == watched[group_id]
        assert described["group"] == row
        members = [(one["client_id"], one["queues"]) for one in states if one["group_id"] == group_id]
        assert [(one["client_id"], one["queues"]) for one in described["members"]] == [one for one in members if one[0]]
        assert (row["members"], row["epoch"]) == (len(page["members"]), watched[group_id]["epoch"])
        assert row["owned"] == sum(bool(one["owner"]) for one in page["queues"])
        own_lags = {(one["topic"], one["queue_id"]): one["lag_messages"] for one in ask("lag", group_id)["queues"]}
        assert own_lags == {(one["topic"], one["queue_id"]): one["lag_messages"] for one in described["queues"]}
        if group_id in lags:
            assert lags[group_id]["lag_messages"] == page["summary"]["lag_messages"]


@pytest.mark.parametrize("seed", range(8))
def test_the_view_is_that_of_the_decisions_on_record(tmp_path, ask, seed):
    """The state is replayed from a snapshot; the views of SQL read all decisions."""
    story = any_story(seed)
    write_tables(tmp_path / "warehouse", story)
    write_assignments(tmp_path / "warehouse", story)
    with duck_ledger(tmp_path / "warehouse") as ledger:
        owned = ledger.rows("select * from current_assignments where client_id is not null")
        members = ledger.rows("select * from current_members")
        last = ledger.rows("select * from groups")
    shown = {one["group_id"]: ask("describe", one["group_id"]) for one in ask("groups")["groups"]}

    assert {
        (group_id, one["topic"], one["queue_id"]): [
            one[name] for name in ("client_id", "from_ms", "epoch", "previous_client_id", "how")
        ]
        for group_id, its in shown.items()
        for one in its["queues"]
        if one["owner"]
    } == {
        (row.group_id, row.topic, row.queue_id): [
            row.client_id, row.from_ms, row.epoch, row.previous_client_id, row.how
        ]
        for row in owned
    }  # fmt: skip
    assert {
        (group_id, one["client_id"]): (one["instance_id"], one["joined_ms"], one["queues"])
        for group_id, its in shown.items()
        for one in its["members"]
    } == {(row.group_id, row.client_id): (row.instance_id, row.joined_ms, row.queues) for row in members}
    names = ("group_id", "epoch", "strategy", "members", "owned", "last_trigger", "last_rebalance_ms")
    of_sql = {row.group_id: [getattr(row, name) for name in names] for row in last}
    assert {group_id: [its["group"][name] for name in names] for group_id, its in shown.items()} == of_sql


def with_snapshots_of_before(story: Story) -> Story:
    """Let the snapshots of a story be those of a release that does not note what questions read."""
    rows = [row_of(row) for row in story.snapshots]
    bodies = [without_facts(row.body) if row.topic.endswith("groups") else row.body for row in rows]
    before = [proven(structs.replace(row, body=body)) for row, body in zip(rows, bodies, strict=True)]
    story.snapshots = [(*structs.astuple(row)[:6], bytearray(row.body), row.row_hash) for row in before]
    return story


def facts_of(described: dict[str, Any]) -> dict[str, Any]:
    """Return what a snapshot of an earlier release lacks, by name."""
    found = {"rebalanced": described["group"]["last_rebalance_ms"]}
    found |= {one["client_id"]: one["joined_ms"] for one in described["members"]}
    return found | {one["name"]: one["from_ms"] for one in described["queues"]}


@pytest.mark.parametrize("group_id", ["audit", "billing"])
def test_what_a_snapshot_of_before_lacks_is_found_in_the_decisions_of_the_last_hour(tmp_path, ask, group_id):
    write_tables(tmp_path / "warehouse", a_day())
    expected = facts_of(ask("describe", group_id))
    delete_all(tmp_path / "warehouse")
    write_tables(tmp_path / "warehouse", with_snapshots_of_before(a_day()))

    assert facts_of(ask("describe", group_id)) == expected


def test_what_nothing_near_shows_is_not_known(tmp_path, ask, wakeroll):
    """After an upgrade, members that joined days ago are shown without a time, not with a wrong one."""
    write_tables(tmp_path / "warehouse", three_days())
    expected = {group_id: facts_of(ask("describe", group_id)) for group_id in ("audit", "billing")}
    delete_all(tmp_path / "warehouse")
    write_tables(tmp_path / "warehouse", with_snapshots_of_before(three_days()))

    found = {group_id: facts_of(ask("describe", group_id)) for group_id in expected}
    pairs = [(expected[group_id][name], fact) for group_id, its in found.items() for name, fact in its.items()]
    assert all(fact in (None, known) for known, fact in pairs)
    assert {fact is None for _, fact in pairs} == {True, False}
    assert "not known" in wakeroll("describe", "audit", "--home", str(tmp_path))[1]


def delete_all(warehouse: Path) -> None:
    for file in sorted(warehouse.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


def test_earlier_rebalances_are_read_near_the_last_one(tmp_path, ask, monkeypatch):
    """However long ago that was, and without the files between."""
    monkeypatch.setattr(delta_files, "_NEWEST_MS", -1)
    opened: list[int] = []
    within = earlier_rebalances.DuckLedger.within

    def noted(ledger, from_ms=None, *others, **options):
        opened.append(from_ms)
        return within(ledger, from_ms, *others, **options)

    write_tables(tmp_path / "warehouse", three_days())
    expected = ask("groups")["groups"]
    monkeypatch.setattr(earlier_rebalances.DuckLedger, "within", noted)
    for row in expected:
        described = ask("describe", row["group_id"])
        epochs = [one["epoch"] for one in described["rebalances"]]
        assert epochs == sorted(epochs, reverse=True)
        assert described["rebalances"][0]["at_ms"] == row["last_rebalance_ms"]
        assert len(epochs) == min(5, row["epoch"]) or described["rebalances_from_ms"] > 0
    assert None not in opened, "no question opens all files"
