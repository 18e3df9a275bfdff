"""One view of a group: all commands that show groups agree, with each other and with the decisions on record."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry

from tests.support.delta_tables import write_assignments, write_tables
from tests.support.earlier_states import without_facts
from tests.support.ledgers import PARTITIONS, Story, a_day, any_story, three_days
from tests.support.samples import sample
from wakeroll.connection import Topics
from wakeroll_model.snapshot_proof import proven
from wakeroll_pipeline.cli.group_answers import DescribeAnswer, GroupsAnswer, LagAnswer, StateAnswer
from wakeroll_pipeline.ledger import delta_files
from wakeroll_pipeline.ledger.duck_ledger import duck_ledger
from wakeroll_pipeline.ledger.stored_snapshots import row_of
from wakeroll_pipeline.live import earlier_rebalances
from wakeroll_pipeline.live.ledger_reader import read_ledger
from wakeroll_pipeline.live.live_model import ViewSource
from wakeroll_pipeline.live.view_structs import GroupView
from wakeroll_pipeline.metrics.group_choice import GroupChoice
from wakeroll_pipeline.serve.live_metrics import LiveMetrics
from wakeroll_pipeline.serve.page_queries import GroupQuery, GroupsQuery
from wakeroll_pipeline.serve.page_regions import PageRegions

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def ask(tmp_path, wakeroll) -> Ask:
    """Return the JSON of a command that asks the tables of this test."""

    def ask(*words: str) -> dict[str, Any]:
        code, said, complaint = wakeroll(*words, "--json", "--home", str(tmp_path))
        assert (code, complaint) == (0, "")
        return json.loads(said)

    return ask


@pytest.mark.parametrize("seed", sample(range(4), quick=1))
def test_all_commands_that_show_groups_agree(tmp_path, ask, seed):
    """An operator who compares two of them at night must not have to find out which one is right."""
    write_tables(tmp_path / "warehouse", any_story(seed))
    listed = {one["group_id"]: one for one in ask("groups")["groups"]}
    watched = {one["group_id"]: one for one in ask("watch", "--once")["groups"]}
    states = {one["group_id"]: one for one in ask("state")["groups"]}
    for command, declared in (("groups", GroupsAnswer), ("lag", GroupsAnswer), ("state", StateAnswer)):
        msgspec.convert(ask(command), declared)

    assert listed == watched
    assert {one["group_id"]: one for one in ask("lag")["groups"]} == {
        name: one for name, one in listed.items() if one["queues"]
    }
    assert listed.keys() == states.keys()
    for group_id, row in listed.items():
        described, page = ask("describe", group_id), ask("watch", group_id, "--once")
        for name in set(GroupView.__struct_fields__) - {"health", "rebalances", "rebalances_from_ms"}:
            assert described[name] == page[name], name
        assert described["rebalances"][: len(page["rebalances"])] == page["rebalances"]
        assert page["summary"] == row
        assert states[group_id]["epoch"] == row["epoch"]
        for answer, declared in ((described, DescribeAnswer), (ask("lag", group_id), LagAnswer)):
            msgspec.convert(answer, declared)
        members = [{**one, "lag_messages": None, "lag_unknown": 0, "catch_up_ms": None} for one in described["members"]]
        assert states[group_id]["members"] == members
        assert sorted(ask("lag", group_id)["queues"], key=str) == sorted(described["queues"], key=str)


@pytest.mark.parametrize("seed", sample(range(4, 8), quick=1))
def test_page_commands_and_metrics_agree_to_the_letter(tmp_path, wakeroll, seed):
    write_tables(tmp_path / "warehouse", any_story(seed))
    source = ViewSource(read_ledger(tmp_path / "warehouse", Topics(), PARTITIONS))
    page, registry = PageRegions(source), CollectorRegistry()
    LiveMetrics(source, registry, GroupChoice(registry, 1_000), 10_000)

    def printed(*words: str) -> list[list[str]]:
        code, said, complaint = wakeroll(*words, "--home", str(tmp_path))
        assert (code, complaint) == (0, "")
        return [re.split(r" {2,}", line) for line in said.splitlines()]

    listed, shown = printed("groups"), rows_of(page.groups(GroupsQuery())["groups"])
    lags = printed("lag")
    for group in source.model.groups_view().groups:
        name = group.group_id
        [line] = [one for one in listed if one[0] == name]
        assert_shown(shown[f"g-{name}"], line[1:5], ("verdict", "Members", "Queues", "Lag"))
        regions, described = page.group(name, GroupQuery()), printed("describe", name)
        assert regions is not None
        queues, members = rows_of(regions["queues"]), rows_of(regions["members"])
        of_lag = {one[0]: one for one in printed("lag", name)}
        for queue in group_of(source, name).queues:
            cells = next(one for one in described if one[0] == queue.name)
            _, owner, committed, end, lag, waits = cells[:6]
            html = queues[f"q-{queue.name}"]
            assert [*html[2:5], html[6]] == [committed, end, lag, waits]
            assert group.mode == "broadcasting" or html[1].startswith(owner.partition(" ")[0])
            assert of_lag[queue.name][:6] == cells[:6]
            labels = {"consumergroup": name, "topic": queue.topic, "partition": str(queue.queue_id)}
            for metric, text in (("lag", lag), ("current_offset", committed)):
                value = registry.get_sample_value(f"kafka_consumergroup_{metric}", labels)
                assert text == ("-" if value is None else f"{value:,.0f}"), metric
        for member in group_of(source, name).members:
            cells = next(one for one in described if one[0] == member.client_id)
            html = members[f"m-{member.client_id}"]
            assert [cells[1], cells[2]] == [html[2].split()[0], html[3]]
            assert html[4].startswith(cells[7])
        value = registry.get_sample_value("wakeroll_group_lag_messages", {"group": name})
        if group.queues:
            [line] = [one for one in lags if one[0] == name]
            assert line[3].removeprefix(">= ") == ("-" if value is None else f"{value:,.0f}")
        assert registry.get_sample_value("kafka_consumergroup_members", {"consumergroup": name}) == group.members
        assert registry.get_sample_value("wakeroll_group_verdict", {"group": name, "verdict": group.verdict}) == 1


def group_of(source: ViewSource, name: str) -> GroupView:
    found = source.model.group_view(name)
    assert found is not None
    return found


def rows_of(html: str) -> dict[str, list[str]]:
    """Return id -> cells of the rows of a table, as people read them."""
    rows = re.findall(r'<tr id="([^"]*)">(.*?)</tr>', html, re.DOTALL)
    return {
        unescape(name): [text_of(one) for one in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for name, row in rows
    }


def text_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def assert_shown(cells: list[str], texts: list[str], names: tuple[str, ...]) -> None:
    for cell, text, name in zip(cells[1:], texts, names, strict=False):
        assert cell == text or cell.startswith(f"{text} "), name


@pytest.mark.parametrize("seed", sample(range(8), quick=2))
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
            one[name] for name in ("owner", "from_ms", "epoch", "previous_client_id", "how")
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
    names = ("group_id", "epoch", "strategy", "members", "owned")
    of_sql = {
        row.group_id: [*(getattr(row, name) for name in names), row.last_trigger, row.last_rebalance_ms] for row in last
    }
    names = (*names, "trigger", "rebalanced_ms")
    assert {group_id: [its["summary"][name] for name in names] for group_id, its in shown.items()} == of_sql


def with_snapshots_of_before(story: Story) -> Story:
    """Let the snapshots of a story be those of a release that does not note what questions read."""
    rows = [row_of(row) for row in story.snapshots]
    bodies = [without_facts(row.body) if row.topic.endswith("groups") else row.body for row in rows]
    before = [proven(structs.replace(row, body=body)) for row, body in zip(rows, bodies, strict=True)]
    story.snapshots = [(*structs.astuple(row)[:6], bytearray(row.body), row.row_hash) for row in before]
    return story


def facts_of(described: dict[str, Any]) -> dict[str, Any]:
    """Return what a snapshot of an earlier release lacks, by name."""
    found = {"rebalanced": described["summary"]["rebalanced_ms"]}
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
        assert described["rebalances"][0]["at_ms"] == row["rebalanced_ms"]
        assert len(epochs) == min(5, row["epoch"]) or described["rebalances_from_ms"] > 0
    assert None not in opened, "no question opens all files"
