"""model/README.md: its words exist in the code, and its drawings show exactly the transitions that happen."""

import importlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple, get_args, get_type_hints

import pytest

from tests.support.story import Story
from wakeroll_model.config import FORGET_MS
from wakeroll_model.decisions import (
    AnyDecision,
    Assignment,
    Cause,
    Change,
    Fenced,
    FencedReason,
    Handover,
    How,
    Membership,
    Rebalance,
    Rejected,
)
from wakeroll_model.events import Tick
from wakeroll_model.group import Group, GroupSettings, Loss
from wakeroll_model.group_machine import step
from wakeroll_model.known_routes import Routes
from wakeroll_model.queue import Queue
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard
from wakeroll_model.shard_clock import Moment

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "model" / "README.md").read_text(encoding="utf-8")
SCENARIOS = ROOT / "tests" / "scenarios"

QUEUE, INSTANCE, GROUP = "States of a queue", "States of an instance", "States of a group"
DRAWINGS = (QUEUE, INSTANCE, GROUP)

SKIPPED = ("broadcasting", "reset_broadcasting", "forgotten")
"""Prefixes of stories about groups in the other mode, and of one that takes 11 s."""

OWN_STORY = """\
# Two instances end that were never members; an operator resets offsets of a group without members.
group billing
0.1s    route orders 2
0.2s    reset orders-0=17 by=ops
1s      beat a orders
2s      beat a#2 orders epoch=0
3s      beat a#3 orders
4s      leave a#3
"""

WITHOUT_A_STATE = ("resubscribed", "described", "conflict", "agreed", "leaving", "readmitted", "inspected", "reported")
"""Changes of members after which they are in the state in which they were."""
OF_KAFKA = {"gone"}
"""Words that are used about Kafka's own groups only, which no machine of a coordinator decides about."""
OUTSIDE = "[*]"
"""Start and end of a drawing."""


class Edge(NamedTuple):
    """A transition."""

    before: str
    after: str
    label: str = ""


# --- the page ---


def section(title: str, page: str = PAGE) -> str:
    [text] = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    return text


def tables(text: str) -> list[list[list[str]]]:
    """Return the rows of each table, without its heading."""
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()[2:]] for table in found]


def drawn(title: str, page: str = PAGE) -> set[Edge]:
    """Return the transitions of a drawing; those between inner states have the outer state's name before a dot."""
    [text] = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", section(title, page), flags=re.DOTALL)
    edges, outer = set[Edge](), ""
    for line in text.splitlines():
        if found := re.fullmatch(r"\s*state (\w+) \{", line):
            outer = f"{found[1]}."
        elif line.strip() == "}":
            outer = ""
        else:
            [(before, after, labels)] = re.findall(r"^\s*(\S+) --> ([^\s:]+)(?:: (.+))?$", line)
            edges |= {Edge(outer + before, outer + after, label) for label in labels.split(", ")}
    return edges


def labels(edges: set[Edge]) -> set[str]:
    """Return the labels that are words of decisions."""
    return {edge.label for edge in edges if edge.label and not edge.label.startswith("(")}


def states(edges: set[Edge]) -> set[str]:
    """Return the names of states, inner ones without the outer one's."""
    return {name.rpartition(".")[2] for edge in edges for name in edge[:2]} - {OUTSIDE}


# --- the code ---


class States(NamedTuple):
    """The states in a group, by the words of the drawings."""

    group: str
    queues: dict[Queue, str]
    instances: dict[tuple[str, str], str]
    """(client_id, instance_id) -> its state."""
    reasons: dict[tuple[str, str], str]
    """(client_id, instance_id) -> why it ended."""
    loss: Loss | None
    """The loss of state that the group recovers from."""


def states_of(group: Group | None) -> States:
    if group is None:
        return States(OUTSIDE, {}, {}, {}, None)
    queues = {queue: "free" for queue, freed in group.freed.items() if freed.how != "cut"}
    instances = dict[tuple[str, str], str]()
    for client_id, member in group.members.items():
        queues |= {queue: "revoking" if queue in member.revoking else "assigned" for queue in member.owned}
        instances |= {(client_id, instance_id): "waiting" for instance_id in member.waiting}
        instances[client_id, member.instance_id] = "member"
    reasons = {(name.split()[0], name.split()[1]): ended.reason for name, ended in group.ended.items()}
    state = "active" if group.members else "empty" if group.emptied_ms >= 0 else OUTSIDE
    return States(state, queues, instances | dict.fromkeys(reasons, "ended"), reasons, group.loss)


def of_queues(before: States, after: States, decisions: list[AnyDecision]) -> Iterator[Edge]:
    now = dict(before.queues)
    for decision in decisions:
        match decision:
            case Handover(queue=queue, how="first"):
                yield Edge(OUTSIDE, "assigned", "first")
                now[queue] = "assigned"
            case Handover(queue=queue, how="cut"):
                yield Edge(now.pop(queue), OUTSIDE, "cut")
            case Handover(queue=queue, how=how, to=to):
                if now[queue] != "free":
                    yield Edge(now[queue], "free", how)
                if to is not None:
                    yield Edge("free", "assigned", "(assign)")
                now[queue] = "free" if to is None else "assigned"
    for queue, state in after.queues.items():
        if state != now.get(queue):
            yield Edge(now.get(queue, OUTSIDE), state, "(revoke)" if state == "revoking" else "unexplained")


def of_instances(before: States, after: States, decisions: list[AnyDecision]) -> Iterator[Edge]:
    for instance, state in after.instances.items():
        was = before.instances.get(instance, OUTSIDE)
        if state == was:
            continue
        changes = [one.change for one in decisions if isinstance(one, Membership) and one.instance_id == instance[1]]
        rules = [one.rule for one in decisions if isinstance(one, Rejected)]
        [label] = {
            "ended": [change for change in changes if change == "died"] or [after.reasons.get(instance, "")],
            "waiting": rules,
            "member": [change for change in changes if change == "joined"],
        }[state]
        yield Edge(was, state, label)
    for decision in decisions:
        match decision:
            case Fenced(reason="refused" | "epoch" as reason):
                yield Edge(OUTSIDE, "fenced", reason)
            case Fenced(reason="kicked", client_id=client_id, instance_id=instance_id):
                if after.instances.get((client_id, instance_id)) != "ended":
                    yield Edge(OUTSIDE, "fenced", "kicked")
            case Membership(change=change) if change in WITHOUT_A_STATE:
                yield Edge("member", "member", change)


def of_group(before: States, after: States, decisions: list[AnyDecision]) -> Iterator[Edge]:
    if before.group != after.group:
        happened = {"active": "joined", "empty": "emptied", OUTSIDE: "forgotten"}[after.group]
        changes = {one.change for one in decisions if isinstance(one, Membership)}
        triggers = [f"({one.trigger})" for one in decisions if isinstance(one, Rebalance)]
        yield Edge(before.group, after.group, happened if happened in changes else "".join(triggers))
    for decision in decisions:
        if isinstance(decision, Membership) and decision.change in ("paused", "resumed", "matched"):
            yield Edge(before.group, after.group, decision.change)


@cache
def happening() -> Mapping[str, set[Edge]]:
    """Return the transitions of each drawing that happen in the stories."""
    found: dict[str, set[Edge]] = {title: set() for title in DRAWINGS}
    assigned: dict[tuple[str, str], str] = {}
    apply = Shard.apply

    def note(before: States, after: States, decisions: list[AnyDecision]) -> None:
        if after.loss not in (None, before.loss):
            return  # a loss of state is not drawn
        for title, edges in ((QUEUE, of_queues), (INSTANCE, of_instances), (GROUP, of_group)):
            found[title] |= set(edges(before, after, decisions))
        for decision in decisions:
            if isinstance(decision, Assignment):
                was = assigned.get((decision.client_id, decision.instance_id), OUTSIDE)
                assigned[decision.client_id, decision.instance_id] = decision.state
                if was != decision.state:
                    found[INSTANCE].add(Edge(f"member.{was}", f"member.{decision.state}"))

    def traced(shard: Shard, record: Record) -> list[AnyDecision]:
        before = states_of(shard.group("billing"))
        decisions = apply(shard, record)
        if not shard.is_quiet:
            of_this = [one for one in decisions if getattr(one, "group_id", "") == "billing"]
            note(before, states_of(shard.group("billing")), of_this)
        return decisions

    stories = sorted(path for path in SCENARIOS.glob("*.txt") if not path.stem.startswith(SKIPPED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Shard, "apply", traced)
        for text in (*(path.read_text(encoding="utf-8") for path in stories), OWN_STORY):
            assigned.clear()
            Story().tell(text)
    group = Group(group_id="billing", settings=GroupSettings(), emptied_ms=0)
    before = states_of(group)
    a_week_later = Moment(FORGET_MS, FORGET_MS, may_expire=True)
    decisions = step(group, Tick(), a_week_later, Cause("", 0, 0), Routes({}))
    note(before, states_of(group), decisions)
    return found


# --- the glossary ---


def declared(name: str) -> bool:
    """Return whether a module of `model` declares a name, like ``group.Member.owned``."""
    module, first, *fields = name.split(".")
    there = getattr(importlib.import_module(f"wakeroll_model.{module}"), first, None)
    for field in fields:
        known = getattr(there, "__annotations__", {}) | getattr(there, "__dict__", {})
        if field not in known:
            return False
        there = known[field]
    return there is not None


def test_every_word_of_the_glossary_is_declared_in_the_code():
    [rows] = tables(section("Glossary"))
    names = {word: re.findall(r"`([\w.]+)`", word) for word, *_ in rows}

    assert len(rows) >= 30
    assert {word for word, found in names.items() if len(found) != 1 or not declared(found[0])} == set()


def test_every_row_of_the_glossary_has_a_meaning_and_the_other_systems_words():
    [rows] = tables(section("Glossary"))

    assert [row for row in rows if len(row) != 4 or not all(row)] == []


@pytest.mark.parametrize("name", ["group.Group.epochs", "group.Grup", "config.MAX_NOTHING"])
def test_a_word_that_the_code_does_not_declare_is_found(name):
    assert not declared(name)


# --- the drawings ---


def test_the_labels_of_hand_overs_are_the_values_of_how():
    assert labels(drawn(QUEUE)) == set(get_args(How)) - OF_KAFKA


def test_the_labels_of_instances_and_groups_are_changes_reasons_and_a_rule():
    assert (
        labels(drawn(INSTANCE)) | labels(drawn(GROUP))
        == {
            *get_args(Change),
            *get_args(FencedReason),
            "in-use",
        }
        - OF_KAFKA
    )


def test_the_inner_states_of_a_member_are_those_of_assignments():
    inner = {edge for edge in drawn(INSTANCE) if edge.before.startswith("member.")}

    assert states(inner) == set(get_args(get_type_hints(Assignment)["state"]))


@pytest.mark.parametrize("title", [QUEUE, INSTANCE])
def test_every_state_and_every_label_is_explained(title):
    explained_states, explained_labels = ({row[0].strip("`") for row in table} for table in tables(section(title)))
    edges = drawn(title)

    assert explained_states == states(edges)
    assert explained_labels == {edge.label for edge in edges if edge.label}


@pytest.mark.parametrize("title", DRAWINGS)
def test_a_drawing_has_the_transitions_that_happen_and_no_others(title):
    """Except that no decision records that a queue or an instance is forgotten."""
    assert happening()[title] == {edge for edge in drawn(title) if edge.label != "(forget)"}


@pytest.mark.parametrize(
    ("title", "line", "instead"),
    [
        (QUEUE, "    free --> assigned: (assign)\n", ""),
        (QUEUE, "revoking --> free: released, ", "revoking --> free: "),
        (INSTANCE, "member --> ended: left", "member --> waiting: left"),
        (INSTANCE, "        stable --> unrevoked\n", ""),
        (GROUP, "active --> empty: emptied", "active --> empty: forgotten"),
    ],
)
def test_a_wrong_drawing_is_found(title, line, instead):
    assert PAGE.count(line) == 1

    wrong = drawn(title, PAGE.replace(line, instead))

    assert happening()[title] != {edge for edge in wrong if edge.label != "(forget)"}
