"""One event that the machine itself fails at must not stop every group of a shard for ever."""

import json
from typing import Any

import pytest
from msgspec import structs

from wakeroll_model import group_machine
from wakeroll_model.decisions import Membership, Rejected
from wakeroll_model.events import Tick, Unregister
from wakeroll_model.group_machine import step as real_step
from wakeroll_model.records import Record
from wakeroll_model.shard import Shard, fingerprint

pytestmark = pytest.mark.usefixtures("planted_bug")

TOPIC = "wakeroll.groups"


def record(offset: int, group_id: str | None, **event: object) -> Record:
    value = {"group_id": group_id, **event} if group_id else event
    key = group_id.encode() if group_id else None
    return Record(TOPIC, 0, offset, 1_000 + offset * 10, key, json.dumps(value).encode())


def beat(offset: int, group_id: str, client_id: str, **more: object) -> Record:
    wants = {"client_id": client_id, "instance_id": f"{client_id}-1", "subscriptions": [{"topic": "orders"}]}
    return record(offset, group_id, type="heartbeat", **wants, **more)


LOG = [
    record(0, None, type="tick"),
    record(
        1, None, type="route", topic="orders", version="1", queues=[{"topic": "orders", "broker": "", "queue_id": 0}]
    ),
    beat(2, "billing", "a"),
    beat(3, "audit", "a"),
    record(4, "billing", type="unregister", client_id="poison", instance_id="p-1"),
    beat(5, "billing", "b"),
    beat(6, "audit", "b"),
]


@pytest.fixture
def planted_bug(monkeypatch):
    """A machine that breaks half way through one event, having changed the group already."""

    def step(group, event, *around):
        if isinstance(event, Unregister) and event.client_id == "poison":
            group.members.clear()
            group.epoch = 99
            raise ZeroDivisionError("a bug")
        return real_step(group, event, *around)

    monkeypatch.setattr(group_machine, "step", step)


def decided(records: list[Record], cuts: tuple[int, ...] = ()) -> tuple[list, Shard]:
    shard, decisions = Shard(TOPIC, 0, 1), []
    for at, one in enumerate(records):
        if at in cuts:
            shard = Shard(TOPIC, 0, 1, shard.body())
        decisions += shard.apply(one)
    return decisions, shard


def test_a_poison_event_is_rejected_and_its_group_stays_as_it_was():
    """Half a step is no step: what the bug changed before it broke is not kept."""
    decisions, shard = decided(LOG)
    rejected = [one for one in decisions if isinstance(one, Rejected)]

    assert [(one.rule, one.group_id, one.cause.offset) for one in rejected] == [("internal", "billing", 4)]
    assert "ZeroDivisionError in" in rejected[0].detail
    assert list(shard.group("billing").members) == ["a", "b"]
    assert list(shard.group("audit").members) == ["a", "b"]
    assert shard.group("billing").epoch < 99


def test_the_other_events_decide_as_if_the_poison_had_not_been():
    """Nothing is lost: every valid event is processed."""
    with_poison, _ = decided(LOG)
    without, _ = decided([one for one in LOG if one.offset != 4])

    def told(decisions: list) -> list:
        return [(type(one).__name__, one.at_ms) for one in decisions if not isinstance(one, Rejected)]

    assert told(with_poison) == told(without)


@pytest.mark.parametrize("cut", range(1, len(LOG)))
def test_where_a_batch_was_cut_does_not_matter(cut):
    """The group is made again from its bytes and the events since; both come to the same."""
    whole, _ = decided(LOG)
    pieces, _ = decided(LOG, (cut,))

    assert pieces == whole


def test_a_test_may_have_the_exception_itself():
    """A bug must not hide behind a rejection while we develop."""
    shard = Shard(TOPIC, 0, 1, raises=True)
    for one in LOG[:4]:
        shard.apply(one)

    with pytest.raises(ZeroDivisionError):
        shard.apply(LOG[4])


# --- deadlines, and how a failure is named ---


def tick(offset: int, second: int) -> Record:
    return Record(TOPIC, 0, offset, second * 1_000, None, b'{"type": "tick"}')


def at(second: int, one: Record) -> Record:
    return Record(TOPIC, 0, one.offset, second * 1_000, one.key, one.value)


def changes(decisions: list) -> list[tuple[int, str]]:
    """Return when, in seconds, who came and went."""
    return [(one.at_ms // 1_000, one.change) for one in decisions if isinstance(one, Membership) and one.client_id]


@pytest.mark.parametrize("cut", [(), range(200)], ids=["one batch", "many batches"])
def test_a_poison_event_postpones_no_deadline(cut):
    """By one such event each minute, anybody could keep the members of any group from ever expiring."""
    poison = record(0, "billing", type="unregister", client_id="poison", instance_id="p-1")
    log = [at(1, beat(0, "billing", "a"))]
    for second in range(2, 60):
        log += [tick(len(log), second), at(second, structs.replace(poison, offset=len(log) + 1))]

    decisions, _ = decided(log, cut)

    assert changes(decisions) == [(1, "joined"), (47, "expired")]


@pytest.mark.parametrize("cut", [(), range(200)], ids=["one batch", "many batches"])
def test_a_tick_that_fails_is_tried_again_after_a_minute(cut, monkeypatch):
    """Not on every tick: the failure would be on record each second, for ever."""

    def step(group, event, *others):
        if isinstance(event, Tick) and group.group_id == "billing":
            raise ZeroDivisionError("a bug")
        return real_step(group, event, *others)

    monkeypatch.setattr(group_machine, "step", step)
    poison = record(0, "billing", type="unregister", client_id="poison", instance_id="p-1")
    log = [at(1, beat(0, "billing", "a"))]
    for second in range(2, 180):
        log += [tick(len(log), second), at(second, structs.replace(poison, offset=len(log) + 1))]

    decisions, _ = decided(log, cut)

    assert [one.at_ms // 1_000 for one in decisions if isinstance(one, Rejected)] == [47, 107, 167]


def failure_of(source: str) -> Exception:
    """Return what a function of the model raises."""
    namespace: dict[str, Any] = {"__name__": "wakeroll_model.planted"}
    exec(compile(source, "planted.py", "exec"), namespace)
    try:
        namespace["outer"]()
    except Exception as error:
        return error
    raise AssertionError("it was to fail")


SOURCE = """
def inner(number):
    return [1 // number for _ in range(3)]

def outer():
    return (lambda: inner(0))()
"""


def test_a_failure_is_named_by_its_functions_and_not_by_its_lines():
    """It stands in a decision: an edit elsewhere in a file must not make a replay differ."""
    edited = "\n\n# a comment" + SOURCE.replace("    return", "\n    return")

    assert fingerprint(failure_of(SOURCE)) == "ZeroDivisionError in model.planted.outer > model.planted.inner"
    assert fingerprint(failure_of(edited)) == fingerprint(failure_of(SOURCE))
